"""From rows to what is shown of them."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from phalanx.core.gang import Gang
from phalanx.core.ledger import Lost, Tally, gpu_seconds
from phalanx.core.model import Job, Phase, Queue, Task, role_of
from phalanx.core.node import Node
from phalanx.core.reasons import Reason, members_reason, own_reason
from phalanx.core.spec import quantities
from phalanx.core.spec.job import SECOND, Micros, Role
from phalanx.core.spec.native_form import native
from phalanx.core.states import State
from phalanx.engine.plain.claims import PlainClaim
from phalanx.wire.cost import EvictionView, LostView, TallyView
from phalanx.wire.jobs import (
    ClaimView,
    Counts,
    JobDetail,
    JobView,
    SubmitReply,
    TaskView,
)
from phalanx.wire.workers import QueueView, WorkerView

_RUNNING = (State.RUNNING, State.PREEMPTING)
_FAILED = (State.FAILED, State.CANCELLED)


def when(at: Micros | None) -> str | None:
    return None if at is None else moment(at)


def moment(at: Micros) -> str:
    return (
        datetime.fromtimestamp(at / SECOND, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def shell_command(role: Role) -> str:
    return role.command if isinstance(role.command, str) else shlex.join(role.command)


def reason_view(reason: Reason | None) -> dict[str, Any] | None:
    return None if reason is None else _told(reason)


def warning_views(warnings: Iterable[msgspec.Struct]) -> tuple[dict[str, Any], ...]:
    return tuple(map(_told, warnings))


def _told(typed: msgspec.Struct) -> dict[str, Any]:
    """As data, and in words."""
    data: dict[str, Any] = msgspec.to_builtins(typed)
    return {**data, "message": str(typed)}


def reason_of(gang: Gang, reasons: Mapping[str, Reason], now: Micros) -> Reason | None:
    """Why it waits: what follows from the job itself, else what the last plan said."""
    if gang.job.phase is not Phase.PENDING:
        return None
    return own_reason(gang, now) or reasons.get(gang.job.id)


def _job_fields(job: Job, reason: Reason | None) -> dict[str, Any]:
    cause = job.cause or (job.drain.cause if job.drain is not None else None)
    return {
        "id": job.id,
        "name": job.name,
        "namespace": job.spec.namespace,
        "queue": job.spec.queue,
        "phase": job.phase,
        "priority": job.priority,
        "size": job.spec.size,
        "created_at": moment(job.created_at),
        "epoch": job.epoch,
        "failures": job.failures,
        "owner": job.owner,
        "on_hold": job.on_hold,
        "finished_at": when(job.finished_at),
        "reason": reason_view(reason),
        "cause": None if cause is None else str(cause),
    }


def job_view(job: Job, reason: Reason | None = None) -> JobView:
    return JobView(**_job_fields(job, reason))


def job_detail(job: Job, tasks: Sequence[Task], reason: Reason | None = None) -> JobDetail:
    views = tuple(task_view(job, task) for task in tasks)
    fields = _job_fields(job, reason)
    if len(views) == 1:
        [one] = views
        fields |= {
            name: getattr(one, name)
            for name in JobDetail.__struct_fields__
            if name in TaskView.__struct_fields__ and name not in fields
        }
    return JobDetail(
        **fields,
        counts=_counts(tasks),
        tasks=views,
        spec=native(job.spec),
        lost=lost_view(job.lost or Lost()),
        cron=job.cron,
    )


def tally_view(tally: Tally) -> TallyView:
    return TallyView(_gpu_s(tally.gpu), _money(tally.cost), tally.count)


def lost_view(lost: Lost) -> LostView:
    total = lost.total
    return LostView(
        gpu_s=_gpu_s(total.gpu),
        cost=_money(total.cost),
        to_eviction=tally_view(lost.eviction),
        to_failure=tally_view(lost.failure),
        evictions=tuple(
            EvictionView(moment(each.at), each.by, _gpu_s(each.gpu), _money(each.cost))
            for each in lost.evictions
        ),
    )


def _gpu_s(gpu: int) -> float:
    return round(gpu_seconds(gpu), 3)


def _money(millionths: int) -> float:
    return round(millionths / 1_000_000, 2)


def _counts(tasks: Sequence[Task]) -> Counts:
    states = [task.state for task in tasks]
    succeeded = states.count(State.DONE)
    failed = sum(states.count(state) for state in _FAILED)
    running = sum(states.count(state) for state in _RUNNING)
    total = len(states)
    return Counts(succeeded, failed, running, total - succeeded - failed - running, total)


def _task_fields(job: Job, task: Task) -> dict[str, Any]:
    role, blob = role_of(job.spec, task.index), task.checkpoint
    return {
        "id": task.id,
        "gang_id": job.id,
        "gang_index": task.index,
        "gang_size": job.spec.size,
        "role": task.role,
        "status": task.state,
        "command": shell_command(role),
        "argv": None if isinstance(role.command, str) else role.command,
        "resources": quantities.native(role.resources),
        "priority": job.priority,
        "queue_name": job.spec.queue,
        "max_retries": job.spec.max_retries,
        "attempts": task.attempts,
        "created_at": moment(job.created_at),
        "reservation_epoch": task.epoch,
        "preemption_epoch": task.epoch,
        "depends_on": job.spec.after,
        "worker_id": task.worker,
        "devices": task.devices,
        "reserved_at": when(task.placed_at),
        "started_at": when(task.started_at),
        "done_at": when(task.ended_at),
        "exit": task.exit,
        "checkpoint_bytes": None if blob is None else blob.size_bytes,
    }


def task_view(job: Job, task: Task) -> TaskView:
    return TaskView(**_task_fields(job, task))


def claim_view(claim: PlainClaim) -> ClaimView:
    job, role = claim.gang.job, claim.gang.role(claim.task.index)
    return ClaimView(
        **_task_fields(job, claim.task),
        grace_s=job.spec.grace / SECOND,
        workdir=role.workdir,
        env=claim.env,
        image=role.image,
        args=role.args,
    )


def submitted_view(
    job: Job, warnings: Iterable[msgspec.Struct] = (), *, is_short: bool
) -> SubmitReply:
    fields = _job_fields(job, members_reason(job))
    if is_short and job.spec.size > 1:
        fields |= {
            "gang_id": job.id,
            "tasks": tuple(f"{job.id}.{index}" for index in range(job.spec.size)),
        }
    elif is_short:
        [role] = job.spec.roles
        fields |= {
            "status": _first_state(job),
            "command": shell_command(role),
            "resources": quantities.native(role.resources),
            "queue_name": job.spec.queue,
            "max_retries": job.spec.max_retries,
            "depends_on": job.spec.after,
        }
    return SubmitReply(**fields, warnings=warning_views(warnings))


def _first_state(job: Job) -> State:
    """The state of the only task of a job that has just been submitted."""
    if job.verdict is Phase.FAILED:
        return State.FAILED
    return State.BLOCKED if job.waits_for else State.PENDING


def worker_view(node: Node) -> WorkerView:
    worker = node.worker
    status = "active" if worker.cordoned is None else "cordoned"
    if worker.leaving:
        status = "leaving"
    return WorkerView(
        id=worker.id,
        status=status if worker.lost_at is None else "lost",
        protocol=worker.protocol,
        incarnation=worker.incarnation,
        exec_addr=worker.address,
        resources=quantities.native(worker.resources),
        free=quantities.native({name: max(0, node.free(name)) for name in worker.resources}),
        tags=worker.labels,
        tasks=tuple(sorted({task for task, _ in node.charges})),
        registered_at=moment(worker.registered_at),
        slots=worker.slots,
        cordoned=worker.cordoned,
        lost_at=when(worker.lost_at),
    )


def queue_view(queue: Queue) -> QueueView:
    return QueueView(
        name=queue.name,
        parent=queue.parent,
        weight=queue.weight,
        quota=quantities.native(queue.quota),
        limit=quantities.native(queue.limit),
        stopped=queue.stopped,
        priority=queue.priority,
        preempt_within_queue=queue.preempt_within_queue,
        reclaim_from_siblings=queue.reclaim_from_siblings,
        reclaimable=queue.reclaimable,
    )
