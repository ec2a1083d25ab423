"""The contract of a store: leadership, commits, pages, blobs, output, retention, tokens, CAs.

A store keeps rows and decides nothing. Leadership is a term, not a lock: every commit carries the
term of its leader, and a store accepts it only while no later term exists. A lease expires by the
clock of the store. The suite in `tests/compliance` holds for every store.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from phalanx.core.ledger import Account
from phalanx.core.model import Cron, ElementBlock, Job, Phase, Queue, Residue, Rows, Task, Worker
from phalanx.core.records import Record
from phalanx.core.time_units import Micros


class Batch(msgspec.Struct, frozen=True):
    """Rows that become durable together or not at all.

    Removals are applied before writes, and removed jobs last of all. Of two rows with the same key
    the later one is kept.
    """

    id: str  #: `has_batch` finds out by it whether the batch was committed
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
    elements: tuple[ElementBlock, ...] = ()
    records: tuple[Record, ...] = ()
    dropped_blobs: tuple[str, ...] = ()
    used_keys: tuple["UsedKey", ...] = ()
    audit: tuple["AuditRecord", ...] = ()
    #: With their tasks, records, blobs and output, and an array with its elements.
    removed_jobs: tuple[str, ...] = ()


class UsedKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """An idempotency key, and the request that was carried out with it."""

    principal: str  #: the id of the token, or the name of a caller without one
    key: str
    digest: str  #: of the content of the request
    used_at: Micros
    #: The job of each submission in the request; None for one that was refused or made a cron.
    jobs: tuple[str | None, ...] = ()


class AuditOutcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"  #: the caller could not be answered whether it was done


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change, or an attempt at one: who made it, from where, and what came of it."""

    id: str
    at: Micros
    principal: str  #: the name of the token
    role: str
    remote: str  #: the address of the caller
    action: str  #: such as `cancel`
    kind: str = ""  #: of the target: job, cron, queue, worker or token
    namespace: str = ""  #: of the target
    target: str = ""  #: the id of a job, or the name of another object
    outcome: AuditOutcome = AuditOutcome.DONE
    code: str = ""  #: of the error, if it was not done
    request_id: str = ""
    count: int = 1  #: requests that this record stands for; its target and id are of the first


class AuditQuery(msgspec.Struct, frozen=True):
    """Which records a page lists; None means any."""

    since: Micros | None = None
    until: Micros | None = None  #: before this time
    principal: str | None = None
    namespace: str | None = None
    target: str | None = None


class AuditPage(msgspec.Struct, frozen=True):
    records: tuple[AuditRecord, ...]
    cursor: str | None  #: asks for the next page; None on the last page


class Leader(msgspec.Struct, frozen=True):
    """The server that leads."""

    term: int
    holder: str
    url: str


class JobQuery(msgspec.Struct, frozen=True):
    """Which jobs a page lists; None means any. Elements of arrays are not listed."""

    namespace: str | None = None
    queue: str | None = None
    phase: Phase | None = None
    name: str | None = None
    id_prefix: str | None = None  #: how the id begins
    name_contains: str | None = None  #: a part of the name, not empty


class JobPage(msgspec.Struct, frozen=True):
    jobs: tuple[Job, ...]
    cursor: str | None  #: asks for the next page; None on the last page


class PruneCounts(msgspec.Struct, frozen=True):
    """How many rows retention removed."""

    jobs: int = 0
    records: int = 0
    blobs: int = 0
    keys: int = 0


class OutputChunk(msgspec.Struct, frozen=True):
    """Consecutive bytes of the output of one attempt of a task."""

    job: str
    task: int
    epoch: int
    offset: int  #: of the first byte, in the whole output of the attempt
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class OutputTrim(msgspec.Struct, frozen=True):
    """Removes the chunks of an attempt that end at `before` or earlier."""

    job: str
    task: int
    epoch: int
    before: int


class OutputEnd(msgspec.Struct, frozen=True):
    """Where the stored output of an attempt ends."""

    task: int
    epoch: int
    end: int


class JobSummary(NamedTuple):
    """What a job that depends on another has to know about it."""

    namespace: str
    phase: Phase  #: in which it has ended, or as of the last commit
    is_finished: bool


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """An API token without its secret, of which only the digest is stored."""

    name: str
    role: str
    digest: str  #: SHA-256 of the token, in hex
    prefix: str  #: the first characters of the token, by which people recognise it
    created_at: Micros
    namespaces: tuple[str, ...] = ()  #: of a user
    workers: str = ""  #: the worker that it is for, or the beginning of names and `*`
    expires_at: Micros | None = None
    joins_left: int | None = None  #: how many workers can still join; None means any number
    next_digest: str = ""  #: of the renewed credential, until it is used for the first time
    revoked_at: Micros | None = None  #: of a credential, which is kept to tell its worker
    id: str = ""  #: of this token; a later one of the same name has another
    owner: str = ""  #: of a session: the name of the token that it was begun with
    owner_digest: str = ""  #: of a session: the digest of that token then


class StoredAuthority(msgspec.Struct, frozen=True, omit_defaults=True):
    """A certificate authority of the cluster, with its private key.

    The key is not encrypted: a reader of the store already has the environments of all jobs, and a
    key that every server has beside the store would not keep it from a writer of the store, who can
    create tokens.
    """

    number: int  #: 1 for the first one; the latest signs
    certificate: str  #: PEM
    key: str  #: PEM
    cross: str = ""  #: the certificate signed by the previous authority, PEM


class ObjectKey(NamedTuple):
    kind: str  #: such as `secret`
    namespace: str  #: empty for an object of the whole cluster
    name: str


class ClusterObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that users or administrators keep in the cluster, such as a policy."""

    kind: str
    namespace: str
    name: str
    body: str  #: JSON or text, as its kind defines
    changed_at: Micros
    changed_by: str = ""  #: the name of the token

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.kind, self.namespace, self.name)


class Note(msgspec.Struct, frozen=True):
    """What a server noted for people to see, and no decision depends on."""

    kind: str
    name: str  #: unique among the notes of its kind
    at: Micros
    doc: str


class StoreError(Exception):
    """The store did not do what was asked, and changed nothing."""


class Deposed(StoreError):  # noqa: N818
    """A later term exists. The holder of this term stops, and can take leadership again."""


class CommitFailed(StoreError):  # noqa: N818
    """The batch is not in the store and never will be. The leader discards its memory and loads."""


class OutcomeUnknown(StoreError):  # noqa: N818
    """The batch may or may not be in the store. Only `has_batch` can tell."""


class StoreUnreachable(StoreError):  # noqa: N818
    """The database does not accept connections at the moment; it may later."""


class SchemaTooNew(StoreError):  # noqa: N818
    """A newer version of Phalanx wrote this store."""


class StoreUnreadable(StoreError):  # noqa: N818
    """Another version of Phalanx wrote this store, or its rows were changed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; another version of Phalanx wrote this database: use that version, or choose"
            " another database with --store (--data of `phalanx up`)"
        )


@runtime_checkable
class Store(Protocol):
    """One handle on a database: opened once, used from one event loop, closed once.

    Every method raises StoreError if the database does not answer.
    """

    async def open(self) -> None:
        """Connect, and bring the schema up to date. Raises SchemaTooNew and
        StoreUnreadable."""

    async def close(self) -> None:
        """Disconnect. Harmless on a handle that is closed or was never opened."""

    async def cluster_id(self) -> str:
        """The id that the database got when it was created. It never changes."""

    # Leadership

    async def lead(self, holder: str, url: str, lease: Micros) -> int | None:
        """Take leadership for `lease` if no lease is in force: the new term, or None.

        Of several contenders at most one gets a term, which is higher than all terms before. The
        holder of a lease that asks again is a contender like any other.
        """

    async def renew(self, term: int, lease: Micros) -> None:
        """Extend the lease to `lease` from now, even if it has expired. Raises Deposed if a later
        term exists."""

    async def resign(self, term: int) -> None:
        """End the lease at once, so that a standby can lead. Harmless if a later term exists."""

    async def leader(self) -> Leader | None:
        """The leader whose lease is in force; None if there is none."""

    # State

    async def load(self, term: int) -> Rows:
        """All rows that the cluster consists of, as of one moment. Raises Deposed.

        These are the unfinished jobs by (created_at, id), their tasks by job and index, all
        workers, queues, residues, accounts and crons by key, the states of the elements of
        unfinished arrays by array and number, and the number of the last record.
        """

    async def commit(self, term: int, batch: Batch) -> None:
        """Write a batch and its id, durably, in one transaction.

        A row replaces the row with the same key. A job replaces only itself: if a stored job has
        the same id and another created_at, the commit fails. A batch whose id is stored already
        changes nothing, so it is safe to send a batch again. Raises Deposed, CommitFailed or
        OutcomeUnknown, and nothing else.
        """

    async def has_batch(self, batch_id: str) -> bool:
        """Whether the batch was committed. False is final: the transaction cannot complete any
        more. Batches of the last hour are known."""

    # Reading

    async def job(self, job_id: str) -> tuple[Job, tuple[Task, ...]] | None:
        """A job with its tasks by index, finished or not."""

    async def elements(self, array: str) -> tuple[ElementBlock, ...]:
        """The states of the elements of an array, finished or not, by number."""

    async def used_key(self, principal: str, key: str) -> UsedKey | None:
        """The request that this principal made with this idempotency key."""

    async def job_summaries(self, job_ids: Collection[str]) -> dict[str, JobSummary]:
        """A summary of each stored job with one of the ids, finished or not."""

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

    # Blobs

    async def put_blob(self, blob_id: str, job: str, data: bytes) -> None:
        """Store bytes, durably. They are removed with their job, which need not exist yet."""

    async def get_blob(self, blob_id: str) -> bytes | None:
        """The bytes of a blob; None if there is no such blob."""

    async def remove_blob(self, blob_id: str) -> None:
        """Remove a blob to which no row refers."""

    # Task output

    async def put_output(
        self, term: int, chunks: Sequence[OutputChunk], trims: Sequence[OutputTrim] = ()
    ) -> int:
        """Store chunks, durably, then apply the trims: the number of bytes that they removed.

        Of two chunks of one attempt with the same offset the longer one is kept. Chunks of a job
        that does not exist are discarded. No commit waits for this. Raises Deposed if a later term
        existed at the beginning.
        """

    async def output_ends(self, job: str) -> tuple[OutputEnd, ...]:
        """The end of the output of each attempt that has any, by task and epoch."""

    async def output(
        self, job: str, task: int, epoch: int, *, offset: int, length: int
    ) -> tuple[OutputChunk, ...]:
        """Chunks of an attempt that end after `offset`, in order.

        These are the chunk that contains `offset`, and the chunks that begin less than `length`
        bytes after `offset`, or after the next chunk if the output has a gap there.
        """

    # Retention

    async def prune(self, term: int, *, before: Micros, limit: int) -> PruneCounts:
        """Remove old rows: how many. Raises Deposed.

        Of the jobs that finished before `before`, at most `limit` are removed, those that finished
        first, with their tasks, records, blobs and output. Elements are removed with their array,
        and not before. Records of no job from before then are
        removed too, and some of the idempotency keys that were used before then. Ids of batches are
        removed after an hour, independently of `before`.
        """

    # Audit

    async def add_audit(self, records: Sequence[AuditRecord]) -> None:
        """Store records of requests that changed nothing, durably. It needs no term."""

    async def audit(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> AuditPage:
        """Records, newest first: by time, then id, both descending. Raises ValueError on a cursor
        that is not one of these pages'."""

    async def prune_audit(self, before: Micros, *, limit: int) -> int:
        """Remove the oldest records from before then, at most `limit`: how many."""

    # Tokens

    # Each change raises the version of the tokens by one and returns it. None means that nothing
    # was changed. They need no term: a token can be added before the first server starts, or next
    # to one. The audit record is stored if something was changed, in the same transaction.

    async def add_token(self, token: Token, audit: AuditRecord | None = None) -> int | None:
        """Store a token, durably; None if its name is taken."""

    async def replace_token(
        self, before: Token, after: Token, audit: AuditRecord | None = None
    ) -> int | None:
        """Replace a token by another of its name, durably; None if it is not as `before` says."""

    async def remove_token(self, name: str, audit: AuditRecord | None = None) -> int | None:
        """Remove a token; None if there is none of that name."""

    async def tokens(self) -> tuple[Token, ...]:
        """All tokens, by name."""

    async def tokens_version(self) -> int:
        """The number of changes of the tokens."""

    async def note_token_uses(self, used_at: Mapping[str, Micros]) -> None:
        """Store when tokens, by name, were last used. It changes no version."""

    async def token_uses(self) -> dict[str, Micros]:
        """When tokens were last used, by name, as far as that was stored."""

    # Objects

    async def change_objects(
        self,
        put: Sequence[ClusterObject],
        removed: Sequence[ObjectKey] = (),
        audit: AuditRecord | None = None,
    ) -> int:
        """Remove objects, then store others in place of those with their keys, durably and
        together: the new version of the objects. It needs no term."""

    async def objects(self) -> tuple[ClusterObject, ...]:
        """All objects, by kind, namespace and name."""

    async def objects_version(self) -> int:
        """The number of changes of the objects."""

    # Notes

    async def put_note(self, note: Note) -> None:
        """Store a note in place of the one with its kind and name. It needs no term."""

    async def notes(self, kind: str) -> tuple[Note, ...]:
        """The notes of a kind, by name."""

    async def remove_notes(self, kind: str, before: Micros) -> None:
        """Remove the notes of a kind from before then."""

    # Certificate authorities

    async def add_authority(self, authority: StoredAuthority) -> bool:
        """Store an authority, durably; False if its number is taken. It needs no term."""

    async def remove_authority(self, number: int) -> bool:
        """Remove an authority; False if there is none of that number."""

    async def authorities(self) -> tuple[StoredAuthority, ...]:
        """All authorities, by number."""
