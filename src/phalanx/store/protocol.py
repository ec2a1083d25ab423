"""What a store promises. It keeps rows and holds no policy.

Leadership is a term, not a lock: every commit names the term it was made under, and a store lets
it through only while that term is the latest one. Expiry is judged by the store's own clock.
"""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from phalanx.core.ledger import Account
from phalanx.core.model import Cron, Job, Phase, Queue, Residue, Rows, Task, Worker
from phalanx.core.records import Record
from phalanx.core.spec.job import Micros


class Batch(msgspec.Struct, frozen=True):
    """Rows that become durable together or not at all. The id lets its fate be looked up.

    What is removed goes before what is written comes, and of two rows with one key the later stays.
    Jobs that are forgotten go last, with their tasks, records, blobs and output.
    """

    id: str
    jobs: tuple[Job, ...] = ()
    tasks: tuple[Task, ...] = ()
    workers: tuple[Worker, ...] = ()
    removed_workers: tuple[str, ...] = ()
    queues: tuple[Queue, ...] = ()
    removed_queues: tuple[str, ...] = ()
    residues: tuple[Residue, ...] = ()
    removed_residues: tuple[tuple[str, int], ...] = ()  #: (task id, epoch)
    accounts: tuple[Account, ...] = ()
    crons: tuple[Cron, ...] = ()
    removed_crons: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    dropped_blobs: tuple[str, ...] = ()
    forgotten_jobs: tuple[str, ...] = ()


class Leader(msgspec.Struct, frozen=True):
    """Who leads, for those who do not."""

    term: int
    holder: str
    url: str


class JobQuery(msgspec.Struct, frozen=True):
    """Which jobs a page lists; None means any."""

    namespace: str | None = None
    queue: str | None = None
    phase: Phase | None = None
    name: str | None = None
    id_prefix: str | None = None  #: how the id begins


class JobPage(msgspec.Struct, frozen=True):
    jobs: tuple[Job, ...]
    cursor: str | None  #: hand it back for the next page; None on the last one


class Pruned(msgspec.Struct, frozen=True):
    """What retention removed."""

    jobs: int = 0
    records: int = 0
    blobs: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Some of what an attempt of a task has written, by where it stands in all of it."""

    job: str
    task: int
    epoch: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class Cut(msgspec.Struct, frozen=True):
    """Chunks of an attempt that end at `before` or earlier are no longer wanted."""

    job: str
    task: int
    epoch: int
    before: int


class Span(msgspec.Struct, frozen=True):
    """How far the output of an attempt reaches that is there."""

    task: int
    epoch: int
    end: int


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who may speak to the server, without the token itself: only its digest is kept."""

    name: str
    role: str
    digest: str  #: SHA-256 of the token, in hex
    prefix: str  #: how the token begins, for people to tell it by
    created_at: Micros
    namespaces: tuple[str, ...] = ()


class StoreError(Exception):
    """The store did not do what was asked; nothing was changed."""


class Deposed(StoreError):  # noqa: N818
    """A later term exists; whoever holds this one must stop and take leadership again."""


class CommitFailed(StoreError):  # noqa: N818
    """The batch is not in the store and never will be; discard memory and load again."""


class OutcomeUnknown(StoreError):  # noqa: N818
    """The batch may or may not be in the store; ask `has_batch` before anything else."""


class SchemaTooNew(StoreError):  # noqa: N818
    """A newer Phalanx wrote this store; upgrade this one to open it."""


@runtime_checkable
class Store(Protocol):
    """Opened once, used from one event loop, closed once."""

    async def open(self) -> None:
        """Connect and bring the schema up to date. Raises SchemaTooNew."""

    async def close(self) -> None: ...

    async def cluster_id(self) -> str:
        """Made when the store was, and never changed."""

    async def lead(self, holder: str, url: str, lease: Micros) -> int | None:
        """Take leadership for `lease` if nobody has it: the new term, or None.

        Of two contenders at most one gets a term, and it is higher than every term before it.
        The same holder asking again is a contender like any other.
        """

    async def renew(self, term: int, lease: Micros) -> None:
        """Extend the lease from now. Raises Deposed if a later term exists.

        A term whose lease ran out is renewed as long as nobody has taken over.
        """

    async def resign(self, term: int) -> None:
        """End the lease at once so that a standby need not wait. Harmless if already deposed."""

    async def leader(self) -> Leader | None:
        """Who leads now, or None when no lease is in force."""

    async def load(self, term: int) -> Rows:
        """Unfinished jobs by (created_at, id), their tasks by job and index, all workers, queues,
        residues, accounts and crons by key, and the number of the last record. Raises Deposed."""

    async def commit(self, term: int, batch: Batch) -> None:
        """Write the batch and its id in one transaction, durably.

        Rows replace those with the same key. A job replaces only itself: a stored job with the same
        id and another created_at is another job, and the commit fails. A batch whose id is already
        there changes nothing, so resending is safe. Raises Deposed, CommitFailed or OutcomeUnknown,
        and nothing else.
        """

    async def has_batch(self, batch_id: str) -> bool:
        """Whether this batch was committed. A `False` is final: the transaction can no longer
        complete after it was given. Reaches back at least over the last hour."""

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        """One job with its tasks by index, finished or not."""

    async def job_by_key(self, namespace: str, key: str) -> Job | None:
        """The job that was submitted with this idempotency key."""

    async def existing_jobs(self, job_ids: Collection[str]) -> set[str]:
        """Those of the ids that a stored job has, finished or not."""

    async def finished_jobs(
        self, query: JobQuery, *, limit: int, cursor: str | None = None
    ) -> JobPage:
        """Finished jobs, newest first: by created_at, then id, both descending.

        Pages neither repeat nor skip a job that had finished when the first page was read. Raises
        ValueError on a cursor that is not one of these pages'.
        """

    async def records(
        self, *, job: str | None = None, after: int = 0, limit: int
    ) -> tuple[Record, ...]:
        """Records with a number above `after`, in order, of one job or of all."""

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        """Keep bytes, durably, before anything points at them. They live as long as their job."""

    async def get_blob(self, blob_id: str) -> bytes | None: ...

    async def put_output(self, term: int, chunks: Sequence[Chunk], cuts: Sequence[Cut] = ()) -> int:
        """Keep these chunks, durably, then remove what is cut; the number of bytes removed.

        Of two chunks of one attempt with one offset the longer stays. Chunks of a job that is not
        there are not kept. Slows no commit. Raises Deposed, as of the moment of asking.
        """

    async def output_spans(self, job: str) -> tuple[Span, ...]:
        """All attempts of a job that have output here, by task and epoch."""

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, span: int
    ) -> tuple[Chunk, ...]:
        """Chunks of an attempt that end after `offset`, in order: the one that it lies in, and
        those that begin within `span` bytes of it, or of the next chunk where there is a gap."""

    async def prune(self, term: int, *, before: Micros, limit: int) -> Pruned:
        """Remove at most `limit` jobs that finished before then, oldest first, with their tasks,
        records, blobs and output; also records of no job older than that, and batch ids more than
        an hour old by the store's clock, whatever `before` says.

        Raises Deposed."""

    async def add_token(self, token: Token) -> bool:
        """Keep a token, durably; False if its name is taken. Needs no term: the first token has to
        be there before a server listens, and any process may add one beside it."""

    async def remove_token(self, name: str) -> bool:
        """Forget a token; False if there is none of that name."""

    async def tokens(self) -> tuple[Token, ...]:
        """All of them, by name."""
