"""Properties of every plan, tried on many small clusters."""

from functools import cache
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.core.model import PreemptWithin, Queue, ReclaimFrom
from phalanx.core.time_units import MINUTE, SECOND
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan, PlannedVictim, Reserve
from phalanx.plan.model import (
    PendingGang,
    PlannerPolicy,
    RoleRequest,
    RunningGang,
    RunningTask,
    TaskRequest,
)
from phalanx.plan.planning_pass import PlanningPass
from phalanx.plan.state.nodes import NodeSpec
from phalanx.plan.state.planner_state import PlannerState

NOW = 1_000 * MINUTE
GPU = 1000


class World(NamedTuple):
    """A cluster that is small enough to be checked by hand."""

    nodes: dict[str, int]  #: whole GPUs
    queues: dict[str, Queue]
    running: dict[str, RunningGang]
    pending: dict[str, PendingGang]

    def state(self, policy: PlannerPolicy | None = None) -> PlannerState:
        state = PlannerState(policy)
        state.set_queues(self.queues)
        for name, gpus in self.nodes.items():
            places = [p for t in self.running.values() for p in t.tasks if p.node == name]
            used = {"gpu": sum(dict(place.resources)["gpu"] for place in places)}
            machine = NodeSpec({"gpu": gpus * GPU}, used, {}, occupants=len(places))
            state.put_node(name, machine)
        for running in self.running.values():
            state.put_running(running)
        for pending in self.pending.values():
            state.put_pending(pending)
        return state

    def plan(self) -> Plan:
        return plan(self.state(), NOW)

    def free(self) -> dict[str, int]:
        free = {name: gpus * GPU for name, gpus in self.nodes.items()}
        for gang in self.running.values():
            for place in gang.tasks:
                free[place.node] -= dict(place.resources)["gpu"]
        return free

    def used(self, queue: str) -> int:
        below = [n for n, q in self.queues.items() if queue in (n, q.parent)]
        return sum(
            dict(place.resources)["gpu"]
            for gang in self.running.values()
            if gang.queue in below
            for place in gang.tasks
        )

    def settled(self, made: Plan) -> "World":
        """The world once victims have stopped and are pending again, and gangs have started."""
        running, pending = dict(self.running), dict(self.pending)
        for decision in made.decisions:
            if isinstance(decision, Evict):
                for victim in decision.victims:
                    evicted = running.pop(victim.job)
                    rest = tuple(p for p in evicted.tasks if p.index not in victim.tasks)
                    if victim.tasks:
                        running[victim.job] = replace(evicted, tasks=rest)
                    else:
                        pending[victim.job] = requeued(evicted)
        for decision in made.decisions:
            if isinstance(decision, Reserve | Evict):
                for placement in decision.placements:
                    gang = pending.pop(placement.job)
                    requests = {task: role.request for role in gang.roles for task in role.tasks}
                    places = tuple(
                        RunningTask(
                            a.task,
                            "worker",
                            a.worker,
                            requests[a.task].resources,
                            ends_at=None if gang.duration is None else NOW + gang.duration,
                        )
                        for a in placement.assignments
                    )
                    running[placement.job] = running_gang(gang, places)
        return self._replace(running=running, pending=pending)


def running_gang(gang: PendingGang, places: tuple[RunningTask, ...]) -> RunningGang:
    return RunningGang(
        job=gang.job,
        name=gang.name,
        version=0,
        queue=gang.queue,
        priority=gang.priority,
        created_at=gang.created_at,
        started_at=0,
        tasks=places,
        min_available=gang.need,
        role_min=(("worker", gang.need),),
        waited=NOW - (NOW if gang.since is None else gang.since),
    )


def requeued(gang: RunningGang) -> PendingGang:
    resources = gang.tasks[0].resources
    part = RoleRequest(
        "worker", TaskRequest(resources), tuple(p.index for p in gang.tasks), len(gang.tasks)
    )
    return PendingGang(
        job=gang.job,
        name=gang.name,
        version=0,
        queue=gang.queue,
        priority=gang.priority,
        created_at=gang.created_at,
        size=len(gang.tasks),
        roles=(part,),
        need=len(gang.tasks),
        since=NOW,
    )


def a_gang(
    number: int,
    queue: str,
    *,
    size: int,
    gpus: int,
    priority: int,
    least: int,
    duration: int | None,
    waited: int,
) -> PendingGang:
    job = f"j-{number}"
    part = RoleRequest(
        "worker", TaskRequest((("gpu", gpus * GPU),)), tuple(range(size)), min(least, size)
    )
    return PendingGang(
        job=job,
        name=f"default/{job}",
        version=0,
        queue=queue,
        priority=priority,
        created_at=number * SECOND,
        size=size,
        roles=(part,),
        need=min(least, size),
        since=NOW - waited,
        duration=duration,
    )


#: How long gangs have been pending: a gang that has been for 20 minutes is starving, and overdue if
#: its time limit is a minute.
WAITS = st.sampled_from([0, 20 * MINUTE])
# Strategies are checked when they are first used, which takes longer than a draw.
DURATIONS = st.sampled_from([None, MINUTE, 10 * MINUTE, 60 * MINUTE])
NODES = st.lists(st.integers(1, 8), min_size=1, max_size=5)
FEW_NODES = st.lists(st.integers(2, 6), min_size=1, max_size=3)
PARENTS = st.sampled_from([None, "all"])
PREEMPT_WITHIN, RECLAIM_FROM = st.sampled_from(PreemptWithin), st.sampled_from(ReclaimFrom)


@cache
def amounts(most: int) -> st.SearchStrategy[dict[str, int]]:
    return st.one_of(st.just({}), st.integers(1, most).map(lambda count: {"gpu": count * GPU}))


@cache
def small_amounts(most: int) -> st.SearchStrategy[dict[str, int]]:
    return st.integers(0, most).map(lambda count: {"gpu": count * GPU} if count else {})


@cache
def one_of_queues(names: str) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


@st.composite
def worlds(draw: st.DrawFn, preemptors: int = 6) -> World:
    """Clusters with gangs that the planner placed on the empty cluster, and pending ones."""
    gpus = draw(NODES)
    nodes = {f"n{n}": count for n, count in enumerate(gpus)}
    names = "abc"[: draw(st.integers(1, 3))]
    some = amounts(sum(gpus))
    above = Queue("all", limit=draw(some))
    queues = {"all": above} | {
        name: Queue(
            name,
            parent=draw(PARENTS),
            preempt_within_queue=draw(PREEMPT_WITHIN),
            reclaim_from_siblings=draw(RECLAIM_FROM),
            reclaimable=draw(st.booleans()),
            weight=draw(st.integers(0, 3)),
            quota=draw(some),
            limit=draw(some),
        )
        for name in names
    }
    pending = [
        a_gang(
            number,
            draw(one_of_queues(names)),
            size=(size := draw(st.integers(1, 4))),
            gpus=draw(st.integers(1, 4)),
            priority=draw(st.integers(0, 2)),
            least=draw(st.integers(1, size)),
            duration=draw(DURATIONS),
            waited=draw(WAITS),
        )
        for number in range(draw(st.integers(1, preemptors + 4)))
    ]
    placed = pending[: draw(st.integers(0, len(pending)))]
    early = World(nodes, queues, {}, {gang.job: gang for gang in placed})
    early = early.settled(early.plan())._replace(pending={})
    unplaced = {gang.job: gang for gang in pending if gang.job not in early.running}
    return early._replace(pending=dict(list(unplaced.items())[-preemptors:]))


@st.composite
def borrowed_worlds(draw: st.DrawFn) -> World:
    """Clusters that two queues fill before a gang of a third one is submitted."""
    gpus = draw(FEW_NODES)
    nodes = {f"n{n}": count for n, count in enumerate(gpus)}
    some = small_amounts(sum(gpus))
    queues = {name: Queue(name, quota=draw(some), weight=draw(st.integers(0, 2))) for name in "abc"}
    gangs = [
        a_gang(
            number,
            draw(one_of_queues("bc")) if number else "a",
            size=(size := draw(st.integers(1, 2))),
            gpus=draw(st.integers(1, 3)),
            priority=0,
            least=size,
            duration=None,
            waited=draw(WAITS),
        )
        for number in range(10)
    ]
    full = World(nodes, queues, {}, {gang.job: gang for gang in gangs[1:]})
    full = full.settled(full.plan())
    pending = {**dict(list(full.pending.items())[:1]), gangs[0].job: gangs[0]}
    return full._replace(pending=pending)


@settings(max_examples=300)
@given(worlds())
def test_no_node_is_ever_over_committed(world: World) -> None:
    made = world.plan()
    at_once = Plan(NOW, tuple(d for d in made.decisions if isinstance(d, Reserve)), made.reasons)
    assert min(world.settled(at_once).free().values()) >= 0
    assert min(world.settled(made).free().values()) >= 0


@settings(max_examples=200)
@given(worlds())
def test_a_gang_gets_its_minimum_or_nothing(world: World) -> None:
    for decision in world.plan().decisions:
        assert isinstance(decision, Reserve | Evict)
        for placement in decision.placements:
            gang = world.pending[placement.job]
            tasks = [assignment.task for assignment in placement.assignments]
            assert gang.need <= len(set(tasks)) == len(tasks) <= gang.size
            if isinstance(decision, Evict):
                assert len(tasks) == gang.need


@settings(max_examples=200)
@given(worlds())
def test_limits_hold(world: World) -> None:
    after = world.settled(world.plan())
    for name, queue in world.queues.items():
        if "gpu" in queue.limit and after.used(name) > world.used(name):
            assert after.used(name) <= queue.limit["gpu"]


@settings(max_examples=300)
@given(worlds(preemptors=1))
def test_no_victim_could_have_been_spared(world: World) -> None:
    for decision in world.plan().decisions:
        if not isinstance(decision, Evict):
            continue
        for kept in decision.victims:
            others = {victim.job: victim for victim in decision.victims if victim is not kept}
            running = {job: only(t, others.get(job)) for job, t in world.running.items()}
            again = world._replace(running=running).plan()
            assert not any(isinstance(d, Evict | Reserve) for d in again.decisions)


def only(gang: RunningGang, victim: PlannedVictim | None) -> RunningGang:
    """The gang, of which only this victim can be evicted."""
    if victim is None:
        return replace(gang, evictable=False)
    places = tuple(
        replace(place, preemptible=not victim.tasks or place.index in victim.tasks)
        for place in gang.tasks
    )
    return replace(gang, tasks=places)


@settings(max_examples=200)
@given(worlds() | borrowed_worlds())
def test_planning_again_and_again_reaches_a_stable_state(world: World) -> None:
    for _ in range(2 + 4 * (len(world.pending) + len(world.running))):
        made = world.plan()
        if not made.decisions:
            return
        world = world.settled(made)
    raise AssertionError("gangs evict each other without end")


@settings(max_examples=300)
@given(borrowed_worlds())
def test_every_reclaim_brings_queues_closer_to_what_they_are_entitled_to(world: World) -> None:
    """The number of starving gangs falls; or it stays, and what queues lack of their quotas falls;
    or that stays too, and what they have too much falls."""
    made = world.plan()
    if any(isinstance(decision, Evict) for decision in made.decisions):
        assert distance(world, world.settled(made)) < distance(world, world)


def distance(world: World, after: World) -> tuple[int, int, int]:
    """How many gangs are starving, what queues lack of the quotas that they demand, and what they
    use above their share, in the world after. What they deserve and demand is taken from the world
    before."""
    starving = sum(gang.since != NOW for gang in after.pending.values())
    work = PlanningPass(world.state().at(NOW))
    work.lineup.settle_shares()
    gpu = work.table.rows["gpu"]
    lacking = above = 0
    for name, queue in world.queues.items():
        if name == "all":
            continue
        quota, share = queue.quota.get("gpu", 0), work.shares.branches[name].deserved[gpu]
        gangs = [g for g in world.running.values() if g.queue == name]
        sizes = [sum(dict(task.resources)["gpu"] for task in gang.tasks) for gang in gangs]
        for gang in world.pending.values():
            [role] = gang.roles
            each = dict(role.request.resources)["gpu"]
            if gang.queue == name and gang.need * each <= quota:
                sizes.append(min(each * len(role.tasks), quota))
        demand = min(
            quota, sum(size for size in sizes if size <= quota), queue.limit.get("gpu", quota)
        )
        lacking += max(0, demand - after.used(name))
        above += max(0, round(after.used(name) - share))
    return starving, lacking, above


@settings(max_examples=100)
@given(worlds())
def test_the_same_state_gives_the_same_decisions(world: World) -> None:
    assert world.plan().decisions == world.plan().decisions
    state = world.state()
    assert plan(state, NOW).decisions == plan(state, NOW).decisions


@settings(max_examples=100)
@given(worlds(), st.randoms(use_true_random=False))
def test_renaming_nodes_changes_nothing_else(world: World, chance: object) -> None:
    shuffle = list(world.nodes)
    chance.shuffle(shuffle)  # type: ignore[attr-defined]
    renamed = dict(zip(world.nodes, shuffle, strict=True))
    other = world._replace(
        nodes={renamed[name]: gpus for name, gpus in world.nodes.items()},
        running={
            job: replace(gang, tasks=tuple(replace(p, node=renamed[p.node]) for p in gang.tasks))
            for job, gang in world.running.items()
        },
    )

    def places(made: Plan, names: dict[str, str]) -> list[object]:
        return [
            (placement.job, [(a.task, names[a.worker]) for a in placement.assignments])
            for decision in made.decisions
            if isinstance(decision, Reserve | Evict)
            for placement in decision.placements
        ]

    same = {name: name for name in world.nodes}
    assert places(world.plan(), renamed) == places(other.plan(), same)


@settings(max_examples=200)
@given(worlds(preemptors=1), st.integers(1, 8))
def test_one_more_node_prevents_no_start(world: World, gpus: int) -> None:
    if not any(isinstance(decision, Reserve) for decision in world.plan().decisions):
        return
    larger = world._replace(nodes={**world.nodes, "more": gpus})
    assert any(isinstance(decision, Reserve) for decision in larger.plan().decisions)
