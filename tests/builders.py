"""Rows and specifications for tests: everything has a default, so a test names what it is about."""

from typing import Any

import msgspec

from phalanx.core.causes import Cause, CauseKind
from phalanx.core.model import (
    EndState,
    Job,
    Phase,
    Protocol,
    Queue,
    Residue,
    Task,
    Worker,
)
from phalanx.core.records import JobSubmitted, Record, WorkerJoined
from phalanx.core.spec.job import (
    CheckpointPolicy,
    JobSpec,
    Match,
    Mode,
    PartialCompletion,
    PreemptionPolicy,
    Restart,
    Role,
)
from phalanx.core.states import State
from phalanx.core.time_units import SECOND


def a_role(**fields: Any) -> Role:
    role = Role(
        name="worker",
        command=("train", "--fast"),
        replicas=1,
        min=1,
        env={"NCCL_DEBUG": "WARN"},
        workdir=None,
        resources={"gpu": 1000, "cpu": 4000, "memory": 16 * 2**30},
        node_selector={},
        per_node=None,
    )
    return msgspec.structs.replace(role, **fields)


def a_spec(**fields: Any) -> JobSpec:
    spec = JobSpec(
        name="train",
        namespace="default",
        queue="research",
        priority=0,
        priority_class=None,
        roles=(a_role(),),
        min_available=1,
        min_resources={},
        max_running=None,
        mode=Mode.STRICT,
        match=Match.ONCE_SATISFIED,
        group=(),
        schedule_timeout=None,
        gather_timeout=None,
        pack=None,
        spread=False,
        restart=Restart.GANG,
        on_partial_completion=PartialCompletion.FAIL,
        max_retries=3,
        backoff=SECOND,
        grace=15 * SECOND,
        time_limit=None,
        stall_after=None,
        watch={},
        complete_when="all",
        preemptible=True,
        preemption_policy=PreemptionPolicy.LOWER,
        checkpoint=CheckpointPolicy.NONE,
        run_as_user=None,
        fence=False,
        external_services={},
        after=(),
        afterany=(),
        afternotok=(),
        schedule=None,
    )
    return msgspec.structs.replace(spec, **fields)


def a_job(job_id: str = "j-1", *, spec: JobSpec | None = None, **fields: Any) -> Job:
    row = Job(
        id=job_id,
        name="train",
        spec=spec or a_spec(),
        phase=Phase.PENDING,
        created_at=1_000,
        priority=0,
    )
    return msgspec.structs.replace(row, **fields)


def a_finished_job(job_id: str, finished_at: int, **fields: Any) -> Job:
    phase = fields.get("phase", Phase.DONE)
    end = EndState(phase, Cause(CauseKind.COMPLETE, "it is complete"), finished_at)
    return a_job(job_id, **{"phase": phase, "end": end, **fields})


def a_task(job: str = "j-1", index: int = 0, **fields: Any) -> Task:
    row = Task(job=job, index=index, role="worker", state=State.BLOCKED)
    return msgspec.structs.replace(row, **fields)


def a_worker(worker_id: str = "w-1", **fields: Any) -> Worker:
    row = Worker(
        id=worker_id,
        incarnation="i-1",
        protocol=Protocol.SYNC,
        address=f"{worker_id}:7070",
        registered_at=1_000,
        born_at=1_000,
        resources={"gpu": 8000},
    )
    return msgspec.structs.replace(row, **fields)


def a_queue(name: str = "research", **fields: Any) -> Queue:
    return msgspec.structs.replace(Queue(name=name), **fields)


def a_residue(task: str = "j-1.0", epoch: int = 1, **fields: Any) -> Residue:
    row = Residue(task=task, epoch=epoch, worker="w-1", since=1_000)
    return msgspec.structs.replace(row, **fields)


def a_record(seq: int = 1, job: str | None = None, at: int = 1_000, size: int = 1) -> Record:
    """A record of that job, or of no job."""
    if job is None:
        return WorkerJoined("w-1", "i-1", seq=seq, at=at)
    return JobSubmitted(job, size, seq=seq, at=at)
