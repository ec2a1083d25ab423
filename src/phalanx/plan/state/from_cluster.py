"""Gangs and nodes of the core, translated into the planner's terms."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from phalanx.core.causes import CauseKind
from phalanx.core.gang import Gang
from phalanx.core.model import Assignment, PendingState, Place, Task
from phalanx.core.node import DEVICE, GPU, Node
from phalanx.core.reasons import WaitingForMembers, own_reason
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import (
    CheckpointPolicy,
    Match,
    Mode,
    PreemptionPolicy,
    Restart,
    Role,
)
from phalanx.core.states import PLACED, State
from phalanx.core.time_units import Micros
from phalanx.plan.model import (
    PendingGang,
    RoleRequest,
    RunningGang,
    RunningTask,
    TaskRequest,
    selecting,
)
from phalanx.plan.state.nodes import NodeSpec


def node_spec(node: Node) -> NodeSpec:
    worker = node.worker
    used: Mapping[str, int] = node.used
    partial: Mapping[int, int] = {}
    if node.devices or GPU in used:
        taken, partial = _taken_devices(node)
        if taken != used.get(GPU):
            used = {**used, GPU: taken}
    return NodeSpec(
        worker.resources,
        used,
        worker.labels,
        worker.slots,
        node.occupants,
        node.closed,
        partial,
    )


def _taken_devices(node: Node) -> tuple[int, dict[int, int]]:
    """Thousandths of devices that cannot be used as whole ones, and what is free on each device
    that is shared."""
    # A device that fractions fill completely is neither free nor shared.
    partial = {n: left for n, left in enumerate(node.devices) if 0 < left < DEVICE}
    full = len(node.devices) - len(partial) - node.devices.count(DEVICE)
    taken = (full + len(partial)) * DEVICE - sum(partial.values())
    if node.used.get(GPU, 0) > taken:
        # Tasks beyond the node's devices must end before another task fits.
        missing = node.missing_devices()
        partial |= {n: DEVICE - amount for n, amount in missing.items() if amount < DEVICE}
        taken += sum(missing.values())
    return taken, partial


_NOT_PENDING = PendingState()
#: Roles whose requests are kept. Equal roles of different jobs are mostly one object.
_KEPT_ROLES = 4096
#: The user of jobs that were submitted without a token.
_ANONYMOUS = "anonymous"


class Translator:
    """Equal roles get one request object, so that equal gangs are in one bucket."""

    def __init__(self, settings: CoreSettings, *, by_user: bool = False) -> None:
        """`by_user`: gangs are ordered by user."""
        self._settings = settings
        self._by_user = by_user
        self._requests: dict[TaskRequest, TaskRequest] = {}
        #: id of a role → the role, referenced so that the id stays its own, and its request.
        self._by_role: dict[int, tuple[Role, TaskRequest]] = {}

    def renewed(self) -> "Translator":
        """A translator that keeps no request yet."""
        return Translator(self._settings, by_user=self._by_user)

    def request(self, role: Role) -> TaskRequest:
        kept = self._by_role.get(id(role))
        if kept is None:
            resources = tuple(sorted(role.resources.items()))
            request = TaskRequest(resources, selecting(role.node_selector), role.per_node)
            if len(self._by_role) >= _KEPT_ROLES:
                self._by_role.clear()
            kept = self._by_role[id(role)] = role, self._requests.setdefault(request, request)
        return kept[1]

    def pending_gang(
        self, gang: Gang, nodes: Mapping[str, Node], group: tuple[str, ...] = ()
    ) -> PendingGang | None:
        """The pending tasks of a gang, if it has any that may be placed. `group` are the names of
        the gangs that it starts with."""
        job, spec = gang.job, gang.job.spec
        if job.is_ending or job.reservation is not None:
            return None
        if not gang.places_tasks_alone and not gang.is_idle:
            return None
        unplaced = gang.unplaced()[: gang.room_to_run]
        if not unplaced:
            return None
        placed, done = gang.started(), gang.done()
        counted = _counted(gang, placed, done) if placed or done else []
        # Where enough tasks run or are done, the others are placed one by one.
        is_complete = job.satisfied and gang.meets_minimum(placed + done)
        one_by_one = is_complete or (job.satisfied and spec.match is Match.ONCE_SATISFIED)
        roles = self._role_requests(spec.roles, unplaced, placed, None if one_by_one else counted)
        need = 1 if one_by_one else max(1, spec.min_available - len(counted))
        stop = self._settings.stop_timeout(spec.grace)
        pending = job.pending or _NOT_PENDING
        gathered = pending.gathered
        never = spec.preemption_policy is PreemptionPolicy.NEVER
        return PendingGang(
            job=job.id,
            name=job.full_name,
            version=job.version,
            queue=spec.queue,
            priority=job.priority,
            created_at=job.created_at,
            size=gang.size,
            roles=tuple(roles),
            need=0 if is_complete and placed else need,
            since=pending.since,
            not_before=pending.not_before,
            backoff_because=pending.lost_because,
            ineligible=own_reason(job, pending.not_before) or _too_few(gang, counted, roles, need),
            is_repair=bool(placed),
            above_minimum=max(0, len(placed) + len(done) - spec.min_available),
            user=self._user(gang),
            preemptible=spec.preemptible,
            strict=spec.mode is Mode.STRICT,
            gate=_gate(gang),
            group=group,
            pack=spec.pack,
            domain=_domain(gang, placed, nodes) if placed else None,
            spread=spec.spread,
            avoid=job.avoid,
            evicts_from=None if never else pending.evicts_from,
            duration=None if spec.time_limit is None else spec.time_limit + stop,
            expires_at=job.times_out_at,
            gathered=() if gathered is None else gathered.places,
            nomination=pending.nomination,
            placed_on=_placed_on(gang, placed) if placed else (),
        )

    def _role_requests(
        self,
        roles: Iterable[Role],
        unplaced: Iterable[Task],
        placed: Iterable[Task],
        counted: Sequence[str] | None,
    ) -> list[RoleRequest]:
        """The roles with unplaced tasks. `counted` are the roles of tasks that count towards the
        minimum already; None where no minimum applies."""
        unplaced_of: dict[str, list[int]] = {}
        for task in unplaced:
            unplaced_of.setdefault(task.role, []).append(task.index)
        counts = _number_of(counted or ())
        placed_of = _number_of([task.role for task in placed])
        requests = []
        for role in roles:
            name = role.name
            tasks = unplaced_of.get(name)
            if tasks is not None:
                need = 0 if counted is None else max(0, role.min - counts.get(name, 0))
                already = placed_of.get(name, 0)
                request = self.request(role)
                requests.append(RoleRequest(name, request, tuple(tasks), need, role.min, already))
        return requests

    def running_gang(self, gang: Gang) -> RunningGang | None:
        """The tasks of a gang that have a place, if there are any."""
        if gang.is_idle:
            return None
        job, spec = gang.job, gang.job.spec
        # A task that was claimed without a worker occupies no node.
        placed = [
            (task, task.place)
            for task in gang.tasks
            if task.state in PLACED and task.place is not None and task.place.worker is not None
        ]
        if not placed:
            return None
        tasks = self._running_tasks(gang, placed)
        done = gang.count(State.DONE)
        is_unbound = job.satisfied and spec.match is Match.ONCE_SATISFIED
        # Its other tasks will be done soon, and an eviction would repeat or lose the done ones.
        loses_done_tasks = done > 0 and not gang.can_start_again
        evicted = job.stopping is None or job.stopping.cause.kind is CauseKind.EVICTION
        started = min([place.placed_at for _, place in placed])
        return RunningGang(
            job=job.id,
            name=job.full_name,
            version=job.version,
            queue=spec.queue,
            priority=job.priority,
            created_at=job.created_at,
            started_at=started,
            tasks=tasks,
            min_available=0 if is_unbound else max(0, spec.min_available - done),
            role_min=_role_minimums(gang, is_unbound=is_unbound),
            preemptible=spec.preemptible,
            evictable=(
                spec.preemptible
                and not job.is_ending
                and not loses_done_tasks
                and not gang.count(State.PREEMPTING)
            ),
            grace=None if spec.checkpoint is CheckpointPolicy.NONE else spec.grace,
            evicted=evicted,
            size=gang.size,
            user=self._user(gang),
            waited=_waited(gang, started),
            restart=self._restart(gang, [task for task, _ in placed], done),
            moved_at=job.moved_at,
            moves_to=_moves_to(gang),
        )

    def _restart(self, gang: Gang, placed: Sequence[Task], done: int) -> PendingGang | None:
        """The gang as it is pending once it has stopped, with the tasks that run now; None if it
        saves no checkpoints or cannot be moved."""
        job, spec = gang.job, gang.job.spec
        saves = spec.checkpoint is not CheckpointPolicy.NONE and spec.preemptible
        if not saves or done or job.is_ending or not job.satisfied or job.reservation is not None:
            return None
        # Once it has stopped, an operator or another element might keep it from starting.
        if job.on_hold or job.array is not None:
            return None
        if spec.restart is Restart.NEVER or spec.min_resources or spec.mode is not Mode.STRICT:
            return None
        roles = self._role_requests(spec.roles, placed, (), ())
        stop = self._settings.stop_timeout(spec.grace)
        return PendingGang(
            job=job.id,
            name=job.full_name,
            version=job.version,
            queue=spec.queue,
            priority=job.priority,
            created_at=job.created_at,
            size=gang.size,
            roles=tuple(replace(role, need=len(role.tasks)) for role in roles),
            need=len(placed),
            pack=spec.pack,
            spread=spec.spread,
            avoid=job.avoid,
            duration=None if spec.time_limit is None else spec.time_limit + stop,
        )

    def _user(self, gang: Gang) -> str:
        return (gang.job.owner or _ANONYMOUS) if self._by_user else ""

    def _running_tasks(
        self, gang: Gang, placed: Iterable[tuple[Task, Place]]
    ) -> tuple[RunningTask, ...]:
        spec, attempt = gang.job.spec, gang.job.attempt
        safe_at = 0 if attempt is None else attempt.safe_at or 0
        longest = None
        if spec.time_limit is not None:
            longest = spec.time_limit + self._settings.stop_timeout(spec.grace)
        return tuple(
            [
                RunningTask(
                    task.index,
                    task.role,
                    place.worker or "",
                    self.request(gang.role(task.index)).resources,
                    place.devices,
                    task.state is State.PREEMPTING,
                    None if longest is None else (place.released_at or place.placed_at) + longest,
                    max(place.started_at or place.placed_at, safe_at),
                )
                for task, place in placed
            ]
        )


def _role_minimums(gang: Gang, *, is_unbound: bool) -> tuple[tuple[str, int], ...]:
    """By role: how many of the tasks that have a place must stay, beside those that are done."""
    roles = gang.job.spec.roles
    if is_unbound:
        return tuple([(role.name, 0) for role in roles])
    done = _number_of([task.role for task in gang.done()])
    return tuple([(role.name, max(0, role.min - done.get(role.name, 0))) for role in roles])


def _number_of(roles: Sequence[str]) -> Mapping[str, int]:
    """By role: how often it is listed."""
    return Counter(roles) if roles else {}


def _moves_to(gang: Gang) -> tuple[Assignment, ...]:
    """The places that are kept for a gang which is stopping because it is moved."""
    stopping = gang.job.stopping
    kept = None if stopping is None else stopping.moves_to
    return () if kept is None else kept.assignments


def _waited(gang: Gang, started: Micros) -> Micros:
    """How long a gang with places was pending before it started, or got the places."""
    attempt, since = gang.job.attempt, gang.job.eligible_since
    if attempt is not None:
        return attempt.waited
    return 0 if since is None else max(0, started - since)


def _too_few(
    gang: Gang, counted: list[str], roles: list[RoleRequest], need: int
) -> WaitingForMembers | None:
    """The reason of a gang with too few pending tasks, whose match policy does not count the
    others."""
    pending = needed_by_roles = 0
    is_too_few = False
    for role in roles:
        pending += len(role.tasks)
        needed_by_roles += role.need
        is_too_few |= role.need > len(role.tasks)
    needed = max(need, needed_by_roles)
    if pending >= needed and not is_too_few:
        return None
    return WaitingForMembers(pending, needed, gang.size - pending - len(counted))


def _counted(gang: Gang, placed: list[Task], done: list[Task]) -> list[str]:
    """The roles of tasks that count towards the minimum besides the pending ones."""
    match = gang.job.spec.match
    tasks: list[Task] = []
    if match in (Match.WAITING_AND_RUNNING, Match.WAITING_RUNNING_SUCCEED):
        tasks += placed
    if match is Match.WAITING_RUNNING_SUCCEED:
        tasks += done
    return [task.role for task in tasks]


def _gate(gang: Gang) -> tuple[tuple[str, int], ...]:
    """What has to be free in the cluster before a gang that has not started is tried."""
    least = gang.job.spec.min_resources
    return tuple(sorted(least.items())) if least and not gang.job.satisfied else ()


def _domain(gang: Gang, placed: list[Task], nodes: Mapping[str, Node]) -> str | None:
    """The domain of a packed gang's placed tasks."""
    pack = gang.job.spec.pack
    if pack is None:
        return None
    used = [nodes.get(task.worker or "") for task in placed]
    return most_common(node.worker.labels.get(pack.by) for node in used if node is not None)


def most_common(domains: Iterable[str | None]) -> str | None:
    """The most frequent domain; of equal ones the first."""
    counts = Counter(domain for domain in domains if domain is not None)
    return max(counts, key=counts.__getitem__, default=None)


def _placed_on(gang: Gang, placed: list[Task]) -> tuple[tuple[str, str, int], ...]:
    """(role, node, number of tasks there), for roles that limit the tasks on one node."""
    limited = {role.name for role in gang.job.spec.roles if role.per_node is not None}
    counts: dict[tuple[str, str], int] = {}
    for task in placed:
        if task.role in limited and task.worker is not None:
            key = (task.role, task.worker)
            counts[key] = counts.get(key, 0) + 1
    return tuple((role, node, count) for (role, node), count in sorted(counts.items()))
