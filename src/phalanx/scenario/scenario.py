"""A scenario: a cluster written down by hand, as the planner is told of it.

Gangs become claims and tenants by the rules of the server: what counts towards the minimum, what
may be evicted, from when patience counts. All times are told from one fixed moment.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from phalanx.core.model import Assignment, Queue
from phalanx.core.node import GPU, Charge, Node
from phalanx.core.queues import DEFAULT
from phalanx.core.reasons import WaitingForMembers
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.fields import FieldPath as FilePlace
from phalanx.core.spec.job import (
    SECOND,
    Match,
    Micros,
    Mode,
    Pack,
    PreemptionPolicy,
    Resources,
    Restart,
)
from phalanx.plan.model import (
    PendingGang,
    PlannerPolicy,
    RoleRequest,
    RunningGang,
    RunningTask,
    TaskRequest,
)
from phalanx.plan.state.from_cluster import most_common, node_spec
from phalanx.plan.state.planner_state import PlannerState
from phalanx.scenario.file_format import GangForm, ScenarioForm, TaskForm, TaskState, read_form
from phalanx.scenario.nodes import empty_node, pick_devices

#: 2000-01-01 00:00 UTC. Any moment would do; this one is easily seen in a printed time.
NOW: Micros = 946_684_800 * SECOND
#: When a gang started or was submitted that does not say so.
LONG_AGO: Micros = NOW - 30 * 24 * 3600 * SECOND

_STOP = CoreSettings().stop_timeout(15 * SECOND)


class ScenarioTask(NamedTuple):
    """A task of a gang and its number in it."""

    number: int
    form: TaskForm


class ScenarioGang(msgspec.Struct, frozen=True):
    """All that is said of a gang, in one place or in two."""

    form: GangForm
    order: int  #: the lower, the earlier it was submitted
    placed: tuple[ScenarioTask, ...]
    waiting: tuple[ScenarioTask, ...]

    @property
    def name(self) -> str:
        return self.form.gang

    @property
    def queue(self) -> str:
        return self.form.queue or DEFAULT.name

    @property
    def done(self) -> int:
        return self.form.finished_members or 0

    @property
    def size(self) -> int:
        return len(self.placed) + len(self.waiting) + self.done

    @property
    def staying(self) -> list[ScenarioTask]:
        return [m for m in self.placed if m.form.state is not TaskState.PREEMPTING]

    @property
    def minimum(self) -> int:
        given = self.form.min_available
        return self.size if given is None else given

    @property
    def restarts(self) -> Restart:
        """A file that lists a running gang as pending too asks where those tasks would go."""
        default = Restart.TASK if self.placed and self.waiting else Restart.GANG
        return self.form.restart or default

    @property
    def is_satisfied(self) -> bool:
        """It has started whole once; whoever runs has, unless the file says otherwise."""
        given = self.form.satisfied
        return bool(self.placed) if given is None else given

    @property
    def is_unbound(self) -> bool:
        """Its minimum no longer matters."""
        return self.form.match is Match.ONCE_SATISFIED and self.is_satisfied

    def role_minimums(self) -> dict[str, int]:
        if self.form.min_available is not None or self.form.min_per_role is not None:
            return dict(self.form.min_per_role or {})
        return _by_role((*self.placed, *self.waiting))


class Scenario(msgspec.Struct, frozen=True):
    name: str
    policy: PlannerPolicy
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    claims: tuple[PendingGang, ...]
    tenants: tuple[RunningGang, ...]
    #: By name: gangs with their tasks by index, to tell an outcome in the words of the file.
    gangs: Mapping[str, ScenarioGang]
    expect: Any  #: as it was written; None if nothing is expected

    def task(self, gang: str, index: int) -> TaskForm:
        found = self.gangs[gang]
        return next(m.form for m in (*found.placed, *found.waiting) if m.number == index)

    def state(self) -> PlannerState:
        """The scenario as the planner sees it."""
        state = PlannerState(self.policy)
        state.set_queues({queue.name: queue for queue in self.queues})
        for node in self.nodes:
            state.put_node(node.worker.id, node_spec(node))
        for tenant in self.tenants:
            state.put_running(tenant)
        for claim in self.claims:
            state.put_pending(claim)
        return state


def read_scenario(document: object) -> Scenario:
    """The scenario in a document, or `Invalid` with every problem in it."""
    form = read_form(document)
    gangs = _gangs(form)
    queues = _queues(form, gangs.values())
    _check(form, gangs, queues)
    nodes = {node.name: empty_node(node) for node in form.nodes}
    devices = _occupy(nodes, gangs.values())
    return Scenario(
        name=form.name,
        # A server would go on in its next pass; a question is answered at once.
        policy=msgspec.structs.replace(form.policy, searches=1 + len(form.pending)),
        nodes=tuple(nodes.values()),
        queues=queues,
        claims=tuple(_claim(gang, gangs, nodes) for gang in gangs.values() if _wants(gang)),
        tenants=tuple(_tenant(gang, devices) for gang in gangs.values() if gang.placed),
        gangs=gangs,
        expect=form.expect,
    )


# Gangs


def _gangs(form: ScenarioForm) -> dict[str, ScenarioGang]:
    listed: dict[str, list[tuple[GangForm, bool]]] = {}
    for one in form.running:
        listed.setdefault(one.gang, []).append((one, True))
    for one in form.pending:
        listed.setdefault(one.gang, []).append((one, False))
    # What runs was there before what waits.
    order = {one.gang: n - len(form.running) for n, one in enumerate(form.running)}
    for n, one in enumerate(form.pending):
        order.setdefault(one.gang, n)
    return {name: _gang(forms, order[name]) for name, forms in listed.items()}


def _gang(forms: list[tuple[GangForm, bool]], order: int) -> ScenarioGang:
    said: dict[str, Any] = {}
    for one, _ in forms:
        told = msgspec.structs.asdict(one)
        said |= {field: value for field, value in told.items() if value is not None}
    form = msgspec.structs.replace(forms[0][0], **said)
    placed = [task for one, is_placed in forms if is_placed for task in one.tasks]
    waiting = [task for one, is_placed in forms if not is_placed for task in one.tasks]
    # The most important first: they are placed first, and the last ones are surplus.
    for tasks in (placed, waiting):
        tasks.sort(key=lambda task: -_priority(task, form))
    given = form.submit_order
    return ScenarioGang(
        form,
        order if given is None else given,
        tuple(ScenarioTask(n, task) for n, task in enumerate(placed)),
        tuple(ScenarioTask(n, task) for n, task in enumerate(waiting, len(placed))),
    )


def _priority(task: TaskForm, gang: GangForm) -> int:
    return (gang.priority or 0) if task.priority is None else task.priority


def _wants(gang: ScenarioGang) -> bool:
    return bool(gang.waiting) and (gang.restarts is Restart.TASK or not gang.placed)


def _queues(form: ScenarioForm, gangs: Iterable[ScenarioGang]) -> tuple[Queue, ...]:
    """Those that are listed, and the default one for gangs that name none."""
    listed = {queue.name: queue for queue in form.queues}
    if any(gang.queue == DEFAULT.name for gang in gangs):
        listed.setdefault(DEFAULT.name, DEFAULT)
    return tuple(listed.values())


def _check(
    form: ScenarioForm, gangs: Mapping[str, ScenarioGang], queues: tuple[Queue, ...]
) -> None:
    """Everything that is named exists, and everything that is there can be told apart."""
    place = FilePlace()
    nodes = {node.name for node in form.nodes}
    names = {queue.name for queue in queues}
    _check_distinct(place.at("nodes"), (node.name for node in form.nodes))
    _check_distinct(place.at("queues"), (queue.name for queue in form.queues))
    for n, queue in enumerate(form.queues):
        if queue.parent is not None and queue.parent not in names:
            place.at("queues").at(n).at("parent").problem(f"is {queue.parent}, which is not listed")
    seen: set[str] = set()
    for kind, listed in (("running", form.running), ("pending", form.pending)):
        for n, gang in enumerate(listed):
            here = place.at(kind).at(n)
            if gangs[gang.gang].queue not in names:
                here.at("queue").problem(f"is {gangs[gang.gang].queue}, which is not listed")
            for m, task in enumerate(gang.tasks):
                _check_task(here.at("tasks").at(m), task, nodes, is_running=kind == "running")
                if task.name in seen:
                    message = f"is {task.name}, which another task is called; rename one"
                    here.at("tasks").at(m).at("name").problem(message)
                seen.add(task.name)
    place.raise_problems()


def _check_distinct(place: FilePlace, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for n, name in enumerate(names):
        if name in seen:
            place.at(n).at("name").problem(f"is {name}, which is listed before; rename one")
        seen.add(name)


def _check_task(place: FilePlace, task: TaskForm, nodes: set[str], *, is_running: bool) -> None:
    for field, node in (("node", task.node), ("held", task.held)):
        if node is not None and node not in nodes:
            place.at(field).problem(f"is {node}, which is not listed under nodes")
    if is_running and task.node is None:
        place.at("node").problem("is missing; a running task is on a node")
    if is_running and task.held is not None:
        place.at("held").problem("is for tasks that wait; this one has its place")
    if not is_running and task.node is not None:
        place.at("node").problem("is for tasks that run; a place that is kept is held")


# Nodes


def _occupy(nodes: Mapping[str, Node], gangs: Iterable[ScenarioGang]) -> dict[str, tuple[int, ...]]:
    """Let all tasks take their devices; which ones, by the name of the task."""
    devices: dict[str, tuple[int, ...]] = {}
    for gang in gangs:
        for index, task in gang.placed:
            node = nodes[task.node or ""]
            devices[task.name] = pick_devices(node, task.resources.get(GPU, 0))
            charge = Charge(0, task.resources, devices[task.name])
            node.charge((f"{gang.name}.{index}", 0), charge)
        for index, task in gang.waiting:
            if task.held is not None:
                node = nodes[task.held]
                picked = pick_devices(node, task.resources.get(GPU, 0))
                node.hold(f"{gang.name}.{index}", Charge(0, task.resources, picked))
    return devices


# Claims and tenants


def _claim(
    gang: ScenarioGang, gangs: Mapping[str, ScenarioGang], nodes: Mapping[str, Node]
) -> PendingGang:
    form = gang.form
    waited = form.waiting_s or 0
    strict = form.mode is not Mode.NON_STRICT
    held = tuple(Assignment(m.number, m.form.held) for m in gang.waiting if m.form.held)
    since = NOW - waited
    patient_from = since if strict or held else None
    patience = form.schedule_timeout_s
    need, role_needs = _needs(gang)
    return PendingGang(
        job=gang.name,
        name=gang.name,
        version=0,
        queue=gang.queue,
        priority=form.priority or 0,
        created_at=LONG_AGO + gang.order * SECOND,
        size=gang.size,
        roles=_parts(gang, role_needs),
        need=need,
        since=since,
        ineligible=_too_few(gang, need, role_needs),
        is_repair=bool(gang.placed),
        above_minimum=max(0, len(gang.staying) + gang.done - gang.minimum),
        strict=strict,
        group=_mates(gang, gangs),
        pack=form.topology,
        domain=_domain(gang, form.topology, nodes),
        evicts_from=None if form.preemption_policy is PreemptionPolicy.NEVER else 0,
        duration=None if form.time_limit_s is None else form.time_limit_s + _STOP,
        expires_at=None if patience is None or patient_from is None else patient_from + patience,
        gathered=held,
        gathered_since=since if held else None,
    )


def _mates(gang: ScenarioGang, gangs: Mapping[str, ScenarioGang]) -> tuple[str, ...]:
    """Whom it starts with: those it names and those that name it, unless they have started."""
    if gang.is_satisfied:
        return ()
    near = dict.fromkeys(gang.form.group or ())
    near |= dict.fromkeys(g.name for g in gangs.values() if gang.name in (g.form.group or ()))
    waiting = (name for name in near if name not in gangs or not gangs[name].is_satisfied)
    return tuple(name for name in waiting if name != gang.name)


def _needs(gang: ScenarioGang) -> tuple[int, dict[str, int]]:
    """How many more tasks have to be placed together, in all and by role.

    A file that says nothing about matching counts all members of the gang, wherever they are.
    """
    staying, done = gang.staying, gang.done
    least, there = gang.role_minimums(), _by_role(staying)
    # Which roles those had that are done is not told.
    lacks = not done and any(there.get(role, 0) < n for role, n in least.items())
    if gang.is_satisfied and staying and len(staying) + done >= gang.minimum and not lacks:
        return 0, {}
    if gang.is_unbound:
        return 1, {}
    match = gang.form.match or Match.WAITING_AND_RUNNING
    counted, there = (0, {}) if match is Match.ONLY_WAITING else (len(staying), there)
    if match is Match.WAITING_RUNNING_SUCCEED:
        counted += done
    roles = {role: n - there.get(role, 0) for role, n in least.items() if n > there.get(role, 0)}
    return max(1, gang.minimum - counted), roles


def _too_few(
    gang: ScenarioGang, need: int, role_needs: Mapping[str, int]
) -> WaitingForMembers | None:
    """A gang of which too few are there waits for the others, whatever is free."""
    by_role = _by_role(gang.waiting)
    least = max(need, sum(role_needs.values()))
    enough = all(by_role.get(role, 0) >= n for role, n in role_needs.items())
    here = len(gang.waiting)
    if enough and here >= least:
        return None
    counted = max(0, gang.minimum - need)
    return WaitingForMembers(here, least, gang.size - here - counted)


def _by_role(members: Iterable[ScenarioTask]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, task in members:
        counts[task.role] = counts.get(task.role, 0) + 1
    return counts


def _parts(gang: ScenarioGang, role_needs: Mapping[str, int]) -> tuple[RoleRequest, ...]:
    """Tasks of one role that ask for the same are one part. Where a role has several, the first
    ones in the file make up its minimum; what is beyond all of them is asked of the last."""
    kinds: dict[str, dict[TaskRequest, list[int]]] = {}
    for index, task in gang.waiting:
        kinds.setdefault(task.role, {}).setdefault(_ask(task), []).append(index)
    parts = []
    least, here = gang.role_minimums(), _by_role(gang.staying)
    for role, asks in kinds.items():
        left = role_needs.get(role, 0)
        for n, (ask, tasks) in enumerate(asks.items(), 1):
            need = left if n == len(asks) else min(left, len(tasks))
            left -= need
            known = (least.get(role, 0), here.get(role, 0)) if n == 1 else (0, 0)
            # The planner knows a part by its role.
            parts.append(
                RoleRequest(role if n == 1 else f"{role}/{n}", ask, tuple(tasks), need, *known)
            )
    return tuple(parts)


def _ask(task: TaskForm) -> TaskRequest:
    return TaskRequest(_sorted(task.resources), tuple(sorted(task.node_selector.items())))


def _sorted(resources: Resources) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(resources.items()))


def _domain(gang: ScenarioGang, pack: Pack | None, nodes: Mapping[str, Node]) -> str | None:
    """Where the part that runs is to be joined."""
    if pack is None:
        return None
    return most_common(nodes[m.form.node or ""].worker.labels.get(pack.by) for m in gang.placed)


def _is_preemptible(task: TaskForm, gang: GangForm) -> bool:
    given = gang.preemptible if task.preemptible is None else task.preemptible
    return given is not False


def _tenant(gang: ScenarioGang, devices: Mapping[str, tuple[int, ...]]) -> RunningGang:
    form = gang.form
    started = LONG_AGO if form.started_s_ago is None else NOW - form.started_s_ago
    saved = form.checkpointed_s_ago
    limit = form.time_limit_s
    places = tuple(
        RunningTask(
            index=index,
            role=task.role,
            node=task.node or "",
            resources=_sorted(task.resources),
            devices=devices[task.name],
            stopping=task.state is TaskState.PREEMPTING,
            ends_at=None if limit is None else started + limit + _STOP,
            safe_at=started if saved is None else max(started, NOW - saved),
            preemptible=_is_preemptible(task, form),
            priority=task.priority,
        )
        for index, task in gang.placed
    )
    never_again = gang.restarts is Restart.GANG and gang.done > 0
    leaves = any(place.stopping for place in places)
    return RunningGang(
        job=gang.name,
        name=gang.name,
        version=0,
        queue=gang.queue,
        priority=form.priority or 0,
        created_at=LONG_AGO + gang.order * SECOND,
        started_at=started,
        tasks=places,
        min_available=0 if gang.is_unbound else max(0, gang.minimum - gang.done),
        role_min=() if gang.is_unbound else tuple(sorted(gang.role_minimums().items())),
        evictable=any(place.preemptible for place in places) and not (never_again or leaves),
    )
