"""Views of the plain protocol, built from rows."""

import shlex
from collections.abc import Iterable
from typing import Any

import msgspec

from phalanx.api.views import job_fields, warning_views
from phalanx.core.environment import args_of, command_of
from phalanx.core.ids import claim_id
from phalanx.core.model import Job, Phase, Task
from phalanx.core.reasons import members_reason
from phalanx.core.spec import quantities
from phalanx.core.spec.job import Resources, Role
from phalanx.core.states import State
from phalanx.core.time_units import SECOND
from phalanx.engine.plain.claims import PlainClaim
from phalanx.identity.principal import Principal
from phalanx.wire.plain import PlainClaimView, PlainSubmitReply, PlainTaskView
from phalanx.wire.times import iso_time, iso_time_or_none

MIB = 1024**2


def plain_task_views(job: Job, tasks: Iterable[Task]) -> list[PlainTaskView]:
    common = _job_fields(job)
    by_role = {role.name: common | _role_fields(job, role) for role in job.spec.roles}
    return [PlainTaskView(**by_role[task.role], **_task_fields(task)) for task in tasks]


def plain_claim_view(claim: PlainClaim) -> PlainClaimView:
    job, role = claim.gang.job, claim.gang.role(claim.task.index)
    fields = _job_fields(job) | _role_fields(job, role) | _task_fields(claim.task)
    # The worker repeats the id in every report, which names the attempt in this way.
    fields["id"] = claim_id(claim.task.id, claim.task.epoch)
    return PlainClaimView(
        **fields,
        grace_s=job.spec.grace / SECOND,
        workdir=role.workdir,
        env=claim.env,
        image=role.image,
        args=args_of(job, role),
    )


def plain_submitted_view(
    job: Job, principal: Principal, warnings: Iterable[msgspec.Struct] = ()
) -> PlainSubmitReply:
    fields = job_fields(job, principal, members_reason(job))
    if job.spec.size > 1:
        fields["gang_id"] = job.id
        fields["tasks"] = tuple(f"{job.id}.{number}" for number in range(job.spec.size))
    else:
        fields["status"] = _first_state(job)
    return PlainSubmitReply(**fields, warnings=warning_views(warnings))


def _job_fields(job: Job) -> dict[str, Any]:
    return {
        "gang_id": job.id,
        "gang_size": job.spec.size,
        "priority": job.priority,
        "queue_name": job.spec.queue,
        "max_retries": job.spec.max_retries,
        "created_at": iso_time(job.created_at),
        "depends_on": job.spec.after,
    }


def _role_fields(job: Job, role: Role) -> dict[str, Any]:
    command = command_of(job, role)
    return {
        "role": role.name,
        "command": command if isinstance(command, str) else shlex.join(command),
        "argv": None if isinstance(command, str) else command,
        "resources": _resources(role.resources),
    }


def _resources(amounts: Resources) -> dict[str, Any]:
    """Resources with the plain protocol's name for memory, a number of MiB."""
    shown = quantities.native(amounts)
    memory = amounts.get("memory")
    if memory is not None and memory % MIB == 0:
        del shown["memory"]
        shown["memory_mb"] = memory // MIB
    return shown


def _task_fields(task: Task) -> dict[str, Any]:
    blob = task.checkpoint
    return {
        "id": task.id,
        "gang_index": task.index,
        "status": task.state,
        "attempts": task.releases,
        "reservation_epoch": task.epoch,
        "preemption_epoch": task.epoch,
        "worker_id": task.worker,
        "devices": task.devices,
        "reserved_at": iso_time_or_none(task.placed_at),
        "started_at": iso_time_or_none(task.started_at),
        "done_at": iso_time_or_none(task.ended_at),
        "exit": task.exit,
        "checkpoint_bytes": None if blob is None else blob.size_bytes,
    }


def _first_state(job: Job) -> State:
    """The state of the only task of a job that has just been submitted."""
    if job.verdict is Phase.FAILED:
        return State.FAILED
    return State.BLOCKED if job.pending is not None and job.pending.after else State.PENDING
