"""What is true of every plan, whatever the cluster: found by trying many small ones."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.core.model import PreemptWithin, Queue, ReclaimFrom
from phalanx.core.spec.job import MINUTE, SECOND
from phalanx.plan.cycle import plan
from phalanx.plan.decisions import Evict, Plan, PlannedVictim, Reserve
from phalanx.plan.model import PendingGang, RoleRequest, RunningGang, RunningTask, TaskRequest
from phalanx.plan.state.nodes import NodeSpec
from phalanx.plan.state.planner_state import PlannerState

NOW = 1_000 * MINUTE
GPU = 1000


class World(NamedTuple):
    """A cluster that is small enough to be checked by hand."""

    nodes: dict[str, int]  #: whole GPUs
    queues: dict[str, Queue]
    tenants: dict[str, RunningGang]
    claims: dict[str, PendingGang]

    def state(self) -> PlannerState:
        state = PlannerState()
        state.set_queues(self.queues)
        for name, gpus in self.nodes.items():
            places = [p for t in self.tenants.values() for p in t.tasks if p.node == name]
            used = {"gpu": sum(dict(place.resources)["gpu"] for place in places)}
            machine = NodeSpec({"gpu": gpus * GPU}, used, {}, occupants=len(places))
            state.put_node(name, machine)
        for tenant in self.tenants.values():
            state.put_running(tenant)
        for claim in self.claims.values():
            state.put_pending(claim)
        return state

    def plan(self) -> Plan:
        return plan(self.state(), NOW)

    def free(self) -> dict[str, int]:
        free = {name: gpus * GPU for name, gpus in self.nodes.items()}
        for tenant in self.tenants.values():
            for place in tenant.tasks:
                free[place.node] -= dict(place.resources)["gpu"]
        return free

    def used(self, queue: str) -> int:
        below = [n for n, q in self.queues.items() if queue in (n, q.parent)]
        return sum(
            dict(place.resources)["gpu"]
            for tenant in self.tenants.values()
            if tenant.queue in below
            for place in tenant.tasks
        )

    def settled(self, made: Plan) -> "World":
        """Victims have stopped and wait again, and the room they left is used."""
        tenants, claims = dict(self.tenants), dict(self.claims)
        for decision in made.decisions:
            if isinstance(decision, Evict):
                for victim in decision.victims:
                    tenant = tenants.pop(victim.job)
                    rest = tuple(p for p in tenant.tasks if p.index not in victim.tasks)
                    if victim.tasks:
                        tenants[victim.job] = replace(tenant, tasks=rest)
                    else:
                        claims[victim.job] = claim_again(tenant)
        for decision in made.decisions:
            if isinstance(decision, Reserve | Evict):
                for placement in decision.placements:
                    claim = claims.pop(placement.job)
                    asks = {task: part.request for part in claim.roles for task in part.tasks}
                    places = tuple(
                        RunningTask(
                            a.task,
                            "worker",
                            a.worker,
                            asks[a.task].resources,
                            ends_at=None if claim.duration is None else NOW + claim.duration,
                        )
                        for a in placement.assignments
                    )
                    tenants[placement.job] = tenant_of(claim, places)
        return self._replace(tenants=tenants, claims=claims)


def tenant_of(claim: PendingGang, places: tuple[RunningTask, ...]) -> RunningGang:
    return RunningGang(
        job=claim.job,
        name=claim.name,
        version=0,
        queue=claim.queue,
        priority=claim.priority,
        created_at=claim.created_at,
        started_at=0,
        tasks=places,
        min_available=claim.need,
        role_min=(("worker", claim.need),),
    )


def claim_again(tenant: RunningGang) -> PendingGang:
    resources = tenant.tasks[0].resources
    part = RoleRequest(
        "worker", TaskRequest(resources), tuple(p.index for p in tenant.tasks), len(tenant.tasks)
    )
    return PendingGang(
        job=tenant.job,
        name=tenant.name,
        version=0,
        queue=tenant.queue,
        priority=tenant.priority,
        created_at=tenant.created_at,
        size=len(tenant.tasks),
        roles=(part,),
        need=len(tenant.tasks),
        since=NOW,
    )


def a_claim(
    number: int,
    queue: str,
    *,
    size: int,
    gpus: int,
    priority: int,
    least: int,
    duration: int | None,
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
        since=NOW,
        duration=duration,
    )


@st.composite
def worlds(draw: st.DrawFn, claimants: int = 6) -> World:
    """Some gangs run, placed by the planner itself on an empty cluster; some wait."""
    gpus = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    nodes = {f"n{n}": count for n, count in enumerate(gpus)}
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    total = sum(gpus)
    gpus_of = st.integers(1, total).map(lambda count: {"gpu": count * GPU})
    some: st.SearchStrategy[dict[str, int]] = st.one_of(st.just({}), gpus_of)
    above = Queue("all", limit=draw(some))
    queues = {"all": above} | {
        name: Queue(
            name,
            parent=draw(st.sampled_from([None, "all"])),
            preempt_within_queue=draw(st.sampled_from(PreemptWithin)),
            reclaim_from_siblings=draw(st.sampled_from(ReclaimFrom)),
            reclaimable=draw(st.booleans()),
            weight=draw(st.integers(0, 3)),
            quota=draw(some),
            limit=draw(some),
        )
        for name in names
    }
    claims = [
        a_claim(
            number,
            draw(st.sampled_from(names)),
            size=(size := draw(st.integers(1, 4))),
            gpus=draw(st.integers(1, 4)),
            priority=draw(st.integers(0, 2)),
            least=draw(st.integers(1, size)),
            duration=draw(st.sampled_from([None, MINUTE, 10 * MINUTE, 60 * MINUTE])),
        )
        for number in range(draw(st.integers(1, claimants + 4)))
    ]
    running = claims[: draw(st.integers(0, len(claims)))]
    early = World(nodes, queues, {}, {claim.job: claim for claim in running})
    early = early.settled(early.plan())._replace(claims={})
    waiting = {c.job: c for c in claims if c.job not in early.tenants}
    return early._replace(claims=dict(list(waiting.items())[-claimants:]))


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
            claim = world.claims[placement.job]
            tasks = [assignment.task for assignment in placement.assignments]
            assert claim.need <= len(set(tasks)) == len(tasks) <= claim.size
            if isinstance(decision, Evict):
                assert len(tasks) == claim.need


@settings(max_examples=200)
@given(worlds())
def test_limits_hold(world: World) -> None:
    after = world.settled(world.plan())
    for name, queue in world.queues.items():
        if "gpu" in queue.limit and after.used(name) > world.used(name):
            assert after.used(name) <= queue.limit["gpu"]


@settings(max_examples=300)
@given(worlds(claimants=1))
def test_nobody_is_evicted_who_could_have_stayed(world: World) -> None:
    for decision in world.plan().decisions:
        if not isinstance(decision, Evict):
            continue
        for kept in decision.victims:
            others = {victim.job: victim for victim in decision.victims if victim is not kept}
            tenants = {job: only(t, others.get(job)) for job, t in world.tenants.items()}
            again = world._replace(tenants=tenants).plan()
            assert not any(isinstance(d, Evict | Reserve) for d in again.decisions)


def only(tenant: RunningGang, victim: PlannedVictim | None) -> RunningGang:
    """A tenant of which nothing can be evicted but this."""
    if victim is None:
        return replace(tenant, evictable=False)
    places = tuple(
        replace(place, preemptible=not victim.tasks or place.index in victim.tasks)
        for place in tenant.tasks
    )
    return replace(tenant, tasks=places)


@settings(max_examples=200)
@given(worlds())
def test_planning_again_and_again_comes_to_rest(world: World) -> None:
    for _ in range(2 + 4 * (len(world.claims) + len(world.tenants))):
        made = world.plan()
        if not made.decisions:
            return
        world = world.settled(made)
    raise AssertionError("gangs go on evicting each other")


@settings(max_examples=100)
@given(worlds())
def test_the_same_state_gives_the_same_decisions(world: World) -> None:
    assert world.plan().decisions == world.plan().decisions
    state = world.state()
    assert plan(state, NOW).decisions == plan(state, NOW).decisions


@settings(max_examples=100)
@given(worlds(), st.randoms(use_true_random=False))
def test_other_names_of_nodes_change_nothing_else(world: World, chance: object) -> None:
    shuffle = list(world.nodes)
    chance.shuffle(shuffle)  # type: ignore[attr-defined]
    renamed = dict(zip(world.nodes, shuffle, strict=True))
    other = world._replace(
        nodes={renamed[name]: gpus for name, gpus in world.nodes.items()},
        tenants={
            job: replace(
                tenant, tasks=tuple(replace(p, node=renamed[p.node]) for p in tenant.tasks)
            )
            for job, tenant in world.tenants.items()
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
@given(worlds(claimants=1), st.integers(1, 8))
def test_one_more_node_keeps_nobody_from_starting(world: World, gpus: int) -> None:
    if not any(isinstance(decision, Reserve) for decision in world.plan().decisions):
        return
    larger = world._replace(nodes={**world.nodes, "more": gpus})
    assert any(isinstance(decision, Reserve) for decision in larger.plan().decisions)
