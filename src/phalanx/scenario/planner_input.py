"""The gangs of a scenario as the planner's input, by the same rules as on the server.

The rules decide what counts towards the minimum, what may be evicted, and from when the schedule
timeout counts.
"""

from collections.abc import Mapping

import msgspec

from phalanx.core.model import Assignment
from phalanx.core.node import Node
from phalanx.core.reasons import WaitingForMembers
from phalanx.core.spec.job import Match, Mode, PreemptionPolicy, Resources, Restart
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.model import (
    PendingGang,
    RoleRequest,
    RunningGang,
    RunningTask,
    TaskRequest,
    selecting,
)
from phalanx.plan.state.from_cluster import most_common
from phalanx.scenario.file_format import TaskEntry, TaskState
from phalanx.scenario.gangs import ScenarioGang, count_roles
from phalanx.scenario.times import LONG_AGO, NOW, STOP_TIMEOUT


def pending_gang(
    gang: ScenarioGang, gangs: Mapping[str, ScenarioGang], nodes: Mapping[str, Node]
) -> PendingGang:
    """The pending tasks of a gang."""
    entry = gang.entry
    since = NOW - (entry.waiting_s or 0)
    gathered = tuple(Assignment(index, task.held) for index, task in gang.pending if task.held)
    need, role_needs = _needs(gang)
    limit = entry.time_limit_s
    return PendingGang(
        job=gang.name,
        name=gang.name,
        version=0,
        queue=gang.queue,
        priority=gang.priority,
        created_at=LONG_AGO + gang.order * SECOND,
        size=gang.size,
        roles=_roles(gang, role_needs),
        need=need,
        since=since,
        ineligible=_missing_members(gang, need, role_needs),
        is_repair=bool(gang.placed),
        above_minimum=max(0, len(gang.staying) + gang.done - gang.minimum),
        user=entry.user or "",
        preemptible=all(_is_preemptible(task, gang) for _, task in gang.pending),
        strict=entry.mode is not Mode.NON_STRICT,
        gate=() if gang.is_satisfied else _sorted(entry.min_resources),
        group=_group(gang, gangs),
        pack=entry.topology,
        domain=_domain(gang, nodes),
        spread=entry.spread or False,
        evicts_from=None if entry.preemption_policy is PreemptionPolicy.NEVER else 0,
        duration=None if limit is None else limit + STOP_TIMEOUT,
        expires_at=_expires_at(gang, since, has_gathered=bool(gathered)),
        gathered=gathered,
    )


def running_gang(gang: ScenarioGang, devices: Mapping[str, tuple[int, ...]]) -> RunningGang:
    """The tasks of a gang that have a place. `devices` are those of each task, by its name."""
    entry = gang.entry
    started_at = LONG_AGO if entry.started_s_ago is None else NOW - entry.started_s_ago
    saved, limit = entry.checkpointed_s_ago, entry.time_limit_s
    tasks = tuple(
        RunningTask(
            index=index,
            role=task.role,
            node=task.node or "",
            resources=_sorted(task.resources),
            devices=devices[task.name],
            stopping=task.state is TaskState.PREEMPTING,
            ends_at=None if limit is None else started_at + limit + STOP_TIMEOUT,
            safe_at=started_at if saved is None else max(started_at, NOW - saved),
            preemptible=_is_preemptible(task, gang),
            priority=task.priority,
        )
        for index, task in gang.placed
    )
    # An eviction would repeat or lose the done tasks of a gang that restarts as a whole.
    runs_once = gang.restart is Restart.GANG and gang.done > 0
    stopping = any(task.stopping for task in tasks)
    return RunningGang(
        job=gang.name,
        name=gang.name,
        version=0,
        queue=gang.queue,
        priority=gang.priority,
        created_at=LONG_AGO + gang.order * SECOND,
        started_at=started_at,
        tasks=tasks,
        min_available=0 if gang.is_unbound else max(0, gang.minimum - gang.done),
        role_min=() if gang.is_unbound else tuple(sorted(gang.role_minimums().items())),
        preemptible=all(task.preemptible for task in tasks),
        evictable=any(task.preemptible for task in tasks) and not (runs_once or stopping),
        size=gang.size,
        user=entry.user or "",
        waited=entry.waiting_s or 0,
        restart=None if saved is None else _restart(gang),
        moved_at=None if entry.moved_s_ago is None else NOW - entry.moved_s_ago,
    )


def _restart(gang: ScenarioGang) -> PendingGang | None:
    """The gang as it is pending once it has stopped; None if it cannot be moved."""
    if gang.done or gang.pending or any(t.state is TaskState.PREEMPTING for _, t in gang.placed):
        return None
    moved = msgspec.structs.replace(gang, placed=(), pending=gang.placed)
    roles = _roles(moved, count_roles(gang.placed))
    limit = gang.entry.time_limit_s
    return PendingGang(
        job=gang.name,
        name=gang.name,
        version=0,
        queue=gang.queue,
        priority=gang.priority,
        created_at=LONG_AGO + gang.order * SECOND,
        size=gang.size,
        roles=roles,
        need=len(gang.placed),
        pack=gang.entry.topology,
        spread=bool(gang.entry.spread),
        duration=None if limit is None else limit + STOP_TIMEOUT,
    )


def _needs(gang: ScenarioGang) -> tuple[int, dict[str, int]]:
    """How many more tasks have to be placed together, in total and by role.

    Without a match policy in the file, running tasks count towards the minimum.
    """
    minimums, placed = gang.role_minimums(), count_roles(gang.staying)
    # The file does not say which roles the tasks had that are done.
    role_is_short = not gang.done and any(
        placed.get(role, 0) < minimum for role, minimum in minimums.items()
    )
    has_minimum = len(gang.staying) + gang.done >= gang.minimum and not role_is_short
    if gang.is_satisfied and gang.staying and has_minimum:
        return 0, {}
    if gang.is_unbound:
        return 1, {}
    match = gang.entry.match or Match.WAITING_AND_RUNNING
    counted = len(gang.staying)
    if match is Match.ONLY_WAITING:
        counted, placed = 0, {}
    elif match is Match.WAITING_RUNNING_SUCCEED:
        counted += gang.done
    missing = {role: minimum - placed.get(role, 0) for role, minimum in minimums.items()}
    return max(1, gang.minimum - counted), {role: n for role, n in missing.items() if n > 0}


def _missing_members(
    gang: ScenarioGang, need: int, role_needs: Mapping[str, int]
) -> WaitingForMembers | None:
    """The reason of a gang of which too few tasks are listed; None if there are enough."""
    listed, by_role = len(gang.pending), count_roles(gang.pending)
    required = max(need, sum(role_needs.values()))
    if listed >= required and all(by_role.get(role, 0) >= n for role, n in role_needs.items()):
        return None
    counted = max(0, gang.minimum - need)
    return WaitingForMembers(listed, required, gang.size - listed - counted)


def _roles(gang: ScenarioGang, role_needs: Mapping[str, int]) -> tuple[RoleRequest, ...]:
    """The pending tasks by role and request.

    A role whose tasks differ in their requests is several roles for the planner, which knows each
    by its name. The first tasks in the file make up the minimum of the role.
    """
    requests: dict[str, dict[TaskRequest, list[int]]] = {}
    for index, task in gang.pending:
        requests.setdefault(task.role, {}).setdefault(_request(task), []).append(index)
    roles = []
    minimums, placed = gang.role_minimums(), count_roles(gang.staying)
    for role, by_request in requests.items():
        rest = role_needs.get(role, 0)
        for n, (request, tasks) in enumerate(by_request.items(), 1):
            need = rest if n == len(by_request) else min(rest, len(tasks))
            rest -= need
            name = role if n == 1 else f"{role}/{n}"
            counts = (minimums.get(role, 0), placed.get(role, 0)) if n == 1 else (0, 0)
            roles.append(RoleRequest(name, request, tuple(tasks), need, *counts))
    return tuple(roles)


def _request(task: TaskEntry) -> TaskRequest:
    return TaskRequest(_sorted(task.resources), selecting(task.node_selector))


def _sorted(resources: Resources) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(resources.items()))


def _group(gang: ScenarioGang, gangs: Mapping[str, ScenarioGang]) -> tuple[str, ...]:
    """The gangs that it starts with: those it names and those that name it, unless they have
    started."""
    if gang.is_satisfied:
        return ()
    names = dict.fromkeys(gang.entry.group or ())
    names |= dict.fromkeys(g.name for g in gangs.values() if gang.name in (g.entry.group or ()))
    return tuple(
        name
        for name in names
        if name != gang.name and (name not in gangs or not gangs[name].is_satisfied)
    )


def _domain(gang: ScenarioGang, nodes: Mapping[str, Node]) -> str | None:
    """The domain in which other tasks of a packed gang run."""
    pack = gang.entry.topology
    if pack is None:
        return None
    return most_common(nodes[task.node or ""].worker.labels.get(pack.by) for _, task in gang.placed)


def _expires_at(gang: ScenarioGang, since: Micros, *, has_gathered: bool) -> Micros | None:
    """When the first timeout ends. The gather timeout begins with the first gathered place."""
    timeouts = [gang.entry.schedule_timeout_s]
    if has_gathered:
        timeouts.append(gang.entry.gather_timeout_s)
    return min((since + each for each in timeouts if each is not None), default=None)


def _is_preemptible(task: TaskEntry, gang: ScenarioGang) -> bool:
    preemptible = gang.entry.preemptible if task.preemptible is None else task.preemptible
    return preemptible is not False
