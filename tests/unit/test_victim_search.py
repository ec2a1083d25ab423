"""The search for victims alone: what it leaves as it was, what it costs, and who may be evicted."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from phalanx.core.node import DEVICE, GPU
from phalanx.manifest import documents
from phalanx.plan.fairshare.demand import settle_shares
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.model import PendingGang, RoleRequest, RunningGang, RunningTask, TaskRequest
from phalanx.plan.preemption.candidates import (
    CandidatePool,
    VictimSet,
    eviction_cost,
    units_above_minimum,
    whole_gang,
)
from phalanx.plan.preemption.node_gains import places_without_each
from phalanx.plan.preemption.search import VictimSearch
from phalanx.plan.preemption.victim_set import SearchSpace
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import NodeSpec, NodeTable
from phalanx.plan.state.pass_capacity import PassCapacity
from phalanx.plan.state.running import Occupancy
from phalanx.scenario.scenario import Scenario, read_scenario
from phalanx.scenario.times import NOW

SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"


class Cluster(NamedTuple):
    """A scenario at the beginning of a pass."""

    pending: dict[str, PendingGang]
    running: dict[str, Occupancy]
    shares: FairShares
    soon: FreeCapacity
    search: VictimSearch

    def find(self, *names: str) -> VictimSet | None:
        gangs = [self.pending[name] for name in names]
        return self.search.find(gangs, self.soon, lambda: SearchSpace((self.soon,)))

    def fingerprint(self) -> object:
        """Everything that a search might change."""
        used = {name: branch.used.tolist() for name, branch in self.shares.branches.items()}
        # A shared device without a free part may be listed with 0 or not at all.
        parts = {
            (node, device): free
            for node, devices in self.soon.partial.items()
            for device, free in devices.items()
            if free
        }
        return used, self.soon.free.tolist(), parts


def cluster(scenario: Scenario) -> Cluster:
    moment = scenario.state().at(NOW)
    shares = FairShares(moment.layout, moment.table)
    settle_shares(shares, moment, (), (), ())
    capacity = PassCapacity(moment)
    capacity.look_ahead()
    search = VictimSearch(moment, (), shares)
    pending = {gang.name: gang for gang in scenario.pending}
    return Cluster(pending, dict(moment.running.by_job), shares, capacity.soon, search)


def of(**fields: Any) -> Cluster:
    return cluster(read_scenario({"name": "a-test", **fields}))


def gang(name: str, *nodes: str, gpu: float = 1, **fields: Any) -> dict[str, Any]:
    """A running gang with a task on each of the nodes, or a pending one with a single task."""
    placed = [{"node": node} for node in nodes] or [{}]
    tasks = [{"name": f"{name}{n}", "resources": {"gpu": gpu}, **p} for n, p in enumerate(placed)]
    return {"gang": name, "tasks": tasks, **fields}


def node(name: str, gpu: int) -> dict[str, Any]:
    return {"name": name, "resources": {"gpu": gpu}}


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_search_leaves_shares_and_capacity_as_they_were(file: Path) -> None:
    for document in documents.read(file.read_bytes()):
        case = cluster(read_scenario(document))
        before = case.fingerprint()
        for name, pending in case.pending.items():
            if pending.need and pending.ineligible is None:
                victims = case.find(name)
                if victims is not None:
                    victims.undo()
                assert case.fingerprint() == before


def test_a_set_of_victims_comes_with_the_places_of_the_preemptor() -> None:
    case = of(
        nodes=[node("n1", 2)],
        running=[gang("low", "n1", gpu=2)],
        pending=[gang("high", gpu=2, priority=5)],
    )
    victims = case.find("high")
    assert victims is not None
    [trial] = victims.trials
    assert [place.worker for place in trial.assignments()] == ["n1"]
    [victim] = victims.victims()
    assert (victim.job, victim.tasks) == ("low", ())


def test_a_gang_that_shrinks_names_its_tasks_and_its_lost_work() -> None:
    elastic = gang("e", "n1", "n1", "n1", min_available=1, started_s_ago=600)
    case = of(nodes=[node("n1", 3)], running=[elastic], pending=[gang("high", priority=5)])
    victims = case.find("high")
    assert victims is not None
    [victim] = victims.victims()
    assert (victim.job, victim.tasks, victim.lost) == ("e", (2,), 600)


def test_a_job_that_is_excluded_is_not_evicted() -> None:
    case = of(
        nodes=[node("n1", 1)], running=[gang("low", "n1")], pending=[gang("high", priority=5)]
    )
    case.search.exclude("low")
    assert case.find("high") is None


def test_a_gang_that_has_shrunk_can_shrink_again_but_not_by_the_same_task() -> None:
    elastic = gang("e", "n1", "n1", "n1", min_available=1)
    pending = [gang("first", priority=5), gang("second", priority=5), gang("third", priority=5)]
    case = of(nodes=[node("n1", 3)], running=[elastic], pending=pending)
    evicted = []
    for name in ("first", "second"):
        victims = case.find(name)
        assert victims is not None
        case.search.evict(victims)
        for unit in victims.units:
            case.soon.vacate(unit.occupants())
        evicted.append(victims.victims()[0].tasks)
    assert evicted == [(2,), (1,)]
    last = case.find("third")
    assert last is not None
    assert last.victims()[0].tasks == ()


def test_without_a_lower_priority_or_a_share_no_search_is_worthwhile() -> None:
    case = of(
        nodes=[node("n1", 1)],
        running=[gang("equal", "n1", priority=5)],
        pending=[gang("in", priority=5)],
    )
    assert not case.search.might_find("default", 5)
    assert case.search.might_find("default", 6)


def test_the_cost_of_victims_is_compared_by_kind_priority_lost_work_and_number() -> None:
    case = of(
        nodes=[node("n1", 8)],
        running=[
            gang("elastic", "n1", "n1", min_available=1, started_s_ago=100),
            gang("single", "n1", priority=3, started_s_ago=50),
        ],
    )
    units = list(units_above_minimum(case.running["elastic"], NOW))
    assert eviction_cost(units) == (False, 0, 100.0, 1)
    assert eviction_cost([]) < eviction_cost(units)


def test_tasks_are_offered_only_as_far_as_every_role_keeps_its_minimum() -> None:
    tasks = [
        {"name": f"{role}{n}", "role": role, "node": "n1", "resources": {"gpu": 1}}
        for role, count in (("ps", 1), ("worker", 3))
        for n in range(count)
    ]
    fields = {"min_available": 2, "min_per_role": {"ps": 1, "worker": 1}}
    case = of(nodes=[node("n1", 4)], running=[{"gang": "g", "tasks": tasks, **fields}])
    units = units_above_minimum(case.running["g"], NOW)
    assert [unit.positions for unit in units] == [(3,), (2,)]


def test_the_places_without_each_candidate_are_those_that_fit_once_it_is_evicted() -> None:
    table = NodeTable()
    for n, used in enumerate((6, 6, 3)):
        size = {"cpu": 32_000, GPU: 8 * DEVICE}
        use = {"cpu": used * 1000, GPU: used * DEVICE}
        table.put(f"n{n}", NodeSpec(size, use, {}))
    units = []
    for job, tasks in enumerate(((("n0", 4), ("n0", 2), ("n1", 4)), (("n1", 2), ("n2", 3)))):
        running = tuple(
            RunningTask(n, "worker", node, (("cpu", gpus * 1000), (GPU, gpus * DEVICE)))
            for n, (node, gpus) in enumerate(tasks)
        )
        gang = RunningGang(f"j-{job}", f"j-{job}", 0, "q", 0, 0, 0, running)
        units.append(whole_gang(Occupancy(gang, table), 0))
    role = RoleRequest("worker", TaskRequest((("cpu", 1000), (GPU, 2 * DEVICE))), (0,), 1)
    table.vector(role.request.resources)
    capacity, nodes = FreeCapacity(table).fork(), table.mask(role.request)
    pool = CandidatePool(units, len(table.rows))
    expected = []
    for unit in units:
        unit.vacate(capacity)
        expected.append(capacity.fit(role.request).total)
        unit.vacate(capacity, -1)
    assert places_without_each(pool, capacity, role, nodes).tolist() == expected == [9, 7]
