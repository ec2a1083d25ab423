"""Rows with everything in them that has ever broken a store: NUL, quotes, half the planes of
Unicode, empty strings and maps, numbers at and beyond the edge of 64 bits."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from phalanx.core.causes import Cause, CauseKind, TaskEnding
from phalanx.core.ledger import Account, AccountEntry, JobLosses, Loss, LostTo, Tally
from phalanx.core.model import (
    Assignment,
    AttemptState,
    Blob,
    Cron,
    CronOutcome,
    CronRun,
    ElementBlock,
    ElementCounts,
    EndState,
    Exit,
    GangMembers,
    GatheredPlaces,
    Job,
    PendingState,
    Phase,
    Place,
    Protocol,
    Queue,
    ReservationState,
    Residue,
    StoppingState,
    Suspicion,
    SuspicionKind,
    Task,
    Worker,
)
from phalanx.core.records import JobSubmitted, TaskFailed, WorkerCordoned
from phalanx.core.states import State
from phalanx.store.protocol import Batch, UsedKey
from tests.builders import a_role, a_spec

NASTY = (
    "",
    "\0",
    "a\0b",
    "\\",
    "\\0",
    "\\u0000",
    "'; DROP TABLE jobs; --",
    '"',
    "𝄞é\u202e",
    "x" * 999,
)

text = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
in_column = st.integers(-(2**63), 2**63 - 1)
number = st.one_of(in_column, st.integers(2**63, 2**70))
resources = st.dictionaries(text, number, max_size=3)
labels = st.dictionaries(text, text, max_size=3)
names = st.lists(text, max_size=3).map(tuple)
maybe_number = st.none() | number


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


json_values = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
causes = st.builds(
    Cause, kind=st.sampled_from(CauseKind), what=text, task=maybe_number, by=maybe(text)
)
blobs = st.builds(Blob, id=text, size_bytes=number)
specs = st.builds(
    a_spec,
    name=maybe(text),
    namespace=text,
    queue=text,
    group=names,
    min_resources=resources,
    max_running=maybe_number,
    schedule_timeout=maybe_number,
    gather_timeout=maybe_number,
    roles=st.builds(a_role, env=labels, resources=resources, command=text | names).map(
        lambda role: (role,)
    ),
)
tallies = st.builds(Tally, gpu=number, cost=number, count=number)
losses = st.builds(
    Loss, at=number, to=st.sampled_from(LostTo), cause=causes, gpu=number, cost=number
)
gathered = st.builds(
    GatheredPlaces,
    places=st.lists(st.builds(Assignment, task=number, worker=text), max_size=2).map(tuple),
    since=number,
)
pending_states = st.builds(PendingState, after=names, not_before=number, gathered=maybe(gathered))
jobs = st.builds(
    Job,
    id=text,
    name=text,
    spec=specs,
    phase=st.sampled_from(Phase),
    created_at=in_column,
    priority=number,
    owner=text,
    pending=maybe(pending_states),
    reservation=maybe(st.builds(ReservationState, together=names)),
    attempt=maybe(st.builds(AttemptState, safe_at=maybe_number)),
    stopping=maybe(st.builds(StoppingState, cause=causes, epoch=number, began_at=number)),
    end=maybe(
        # Only unfinished jobs are loaded.
        st.builds(EndState, verdict=st.sampled_from(Phase), cause=causes, finished_at=st.none())
    ),
    members=maybe(
        st.builds(
            GangMembers,
            needed=maybe_number,
            names=names,
            weights=st.dictionaries(text, number, max_size=2),
            shared=labels,
            total=maybe_number,
        )
    ),
    array=maybe(text),
    counts=maybe(st.builds(ElementCounts, done=number, never_ran=number)),
    losses=maybe(
        st.builds(JobLosses, eviction=tallies, evictions=st.lists(losses, max_size=2).map(tuple))
    ),
)
tasks = st.builds(
    Task,
    job=text,
    index=st.integers(0, 2**63 - 1),
    role=text,
    state=st.sampled_from(State),
    place=maybe(
        st.builds(
            Place,
            worker=maybe(text),
            placed_at=number,
            devices=st.lists(number, max_size=3).map(tuple),
            address_port=maybe_number,
            released_at=maybe_number,
        )
    ),
    exit=maybe(st.builds(Exit, code=maybe_number, signal=maybe_number, signalled=st.booleans())),
    checkpoint=maybe(blobs),
)
workers = st.builds(
    Worker,
    id=text,
    incarnation=text,
    protocol=st.sampled_from(Protocol),
    address=text,
    registered_at=number,
    born_at=number,
    resources=resources,
    labels=labels,
    cordoned=maybe(text),
    suspicions=st.lists(
        st.builds(
            Suspicion,
            job=text,
            at=number,
            owner=text,
            kind=st.sampled_from(SuspicionKind),
            ran=number,
            counts=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
)
queues = st.builds(Queue, name=text, parent=maybe(text), quota=resources, limit=resources)
residues = st.builds(
    Residue,
    task=text,
    epoch=in_column,
    worker=text,
    since=number,
    resources=resources,
    ports=st.lists(number, max_size=2).map(tuple),
)
accounts = st.builds(
    Account,
    queue=text,
    eviction=tallies,
    jobs=st.dictionaries(text, st.builds(AccountEntry, name=text, lost=tallies), max_size=2),
    evictors=st.dictionaries(text, tallies, max_size=2),
    days=st.dictionaries(in_column, number, max_size=2),
)
crons = st.builds(
    Cron,
    key=text,
    spec=specs,
    owner=text,
    created_at=number,
    next_at=maybe_number,
    last=maybe(st.builds(CronOutcome, at=number, what=text, job=maybe(text))),
    runs=st.lists(
        st.builds(CronRun, job=text, name=text, at=number, phase=maybe(st.sampled_from(Phase))),
        max_size=2,
    ).map(tuple),
)
blocks = st.builds(
    ElementBlock, array=text, number=in_column, states=text, attempts=st.binary(max_size=9)
)
number_and_time = {"seq": st.integers(1, 2**63 - 1), "at": in_column}
records = st.one_of(
    st.builds(JobSubmitted, job=text, size=number, owner=text, **number_and_time),
    st.builds(
        TaskFailed,
        job=text,
        attempt=number,
        task=number,
        worker=maybe(text),
        how=st.sampled_from(TaskEnding),
        why=text,
        exit_code=maybe_number,
        **number_and_time,
    ),
    st.builds(WorkerCordoned, worker=text, why=text, **number_and_time),
)


used_keys = st.builds(
    UsedKey,
    principal=text,
    key=text,
    digest=text,
    used_at=in_column,
    jobs=st.lists(maybe(text), max_size=2).map(tuple),
)


def distinct(rows: st.SearchStrategy[Any], *keys: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(rows, max_size=4, unique_by=keys).map(tuple)


# Strategies are checked when they are first used, which takes longer than a draw.
some_jobs = distinct(jobs, lambda job: job.id)
some_workers = distinct(workers, lambda worker: worker.id)
some_queues = distinct(queues, lambda queue: queue.name)
some_residues = distinct(residues, lambda residue: (residue.task, residue.epoch))
some_accounts = distinct(accounts, lambda account: account.queue)
some_crons = distinct(crons, lambda cron: cron.key)
some_records = distinct(records, lambda record: record.seq)
some_used_keys = distinct(used_keys, lambda used: (used.principal, used.key))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Every task belongs to a job, as in the rows that the core makes."""
    drawn = draw(some_jobs)
    ids = st.sampled_from([job.id for job in drawn]) if drawn else st.nothing()
    of_an_array = st.builds(
        lambda block, job: msgspec.structs.replace(block, array=job), blocks, ids
    )
    of_a_job = st.builds(lambda task, job: msgspec.structs.replace(task, job=job), tasks, ids)
    return Batch(
        id=draw(text),
        jobs=drawn,
        tasks=draw(distinct(of_a_job, lambda task: (task.job, task.index))) if drawn else (),
        workers=draw(some_workers),
        queues=draw(some_queues),
        residues=draw(some_residues),
        accounts=draw(some_accounts),
        crons=draw(some_crons),
        elements=draw(distinct(of_an_array, lambda block: (block.array, block.number)))
        if drawn
        else (),
        records=draw(some_records),
        used_keys=draw(some_used_keys),
    )
