"""Counts that a capacity keeps up to date equal counts that are made anew."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.node import DEVICE, GPU
from phalanx.plan.model import TaskRequest, selecting
from phalanx.plan.state.capacity import FreeCapacity, TakenCapacity, count
from phalanx.plan.state.nodes import NodeSpec, NodeTable

REQUESTS = (
    TaskRequest((("cpu", 1000),)),
    TaskRequest((("cpu", 2000), (GPU, DEVICE))),
    TaskRequest(((GPU, 2 * DEVICE),), selecting({"zone": "a"})),
    TaskRequest(((GPU, DEVICE // 4),)),
    TaskRequest(),
)


def cluster(nodes: int) -> NodeTable:
    table = NodeTable()
    for n in range(nodes):
        size = {"cpu": 8000, GPU: 4 * DEVICE}
        table.put(f"n{n}", NodeSpec(size, {}, {"zone": "ab"[n % 2]}, slots=9))
    for request in REQUESTS:
        table.vector(request.resources)
    return table


def agrees(capacity: FreeCapacity, request: TaskRequest) -> None:
    """The answers of a capacity, against a count of all nodes."""
    table = capacity.table
    fresh = count(
        table.vector(request.resources), capacity.free, capacity.partial, table.mask(request)
    )
    assert capacity.total_fit(request) == fresh.sum()
    assert (capacity.fit(request).counts == fresh).all()
    assert capacity.fit(request).total == fresh.sum()
    assert capacity.most_fit(request, "zone") == table.most_in_domain(fresh, "zone")
    wanted = min(3, int(fresh.sum()))
    if wanted:
        nodes, counts = capacity.fullest(request, wanted)
        assert counts.sum() == wanted
        assert (counts <= fresh[nodes]).all()
        chosen = capacity.leftover(request, nodes)
        others = np.setdiff1d(np.flatnonzero(fresh), nodes)
        assert chosen.max() <= capacity.leftover(request, others).min(initial=np.inf)


def take_some(chance: random.Random, capacity: FreeCapacity) -> TakenCapacity | None:
    request = chance.choice(REQUESTS)
    counts = capacity.fit(request).counts
    nodes = np.flatnonzero(counts)
    if not len(nodes):
        return None
    some = np.array(sorted(chance.sample(nodes.tolist(), min(len(nodes), 3))))
    return capacity.take(
        capacity.table.vector(request.resources), some, np.minimum(counts[some], 2)
    )


@given(st.integers(0, 10_000), st.sampled_from((3, 40, 600)))
def test_forks_count_right_whatever_they_take_and_give_back(seed: int, nodes: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    capacities = [FreeCapacity(cluster(nodes)).fork()]
    taken: list[tuple[FreeCapacity, TakenCapacity]] = []
    for _ in range(25):
        capacity = chance.choice(capacities)
        what = chance.randrange(5)
        if what == 0 and len(capacities) < 4:
            capacities.append(capacity.fork())
        elif what == 1 and taken and taken[-1][0] is capacity:
            capacity.give_back(taken.pop()[1])
        elif what == 2:
            vector = capacity.table.vector(REQUESTS[0].resources)
            capacity.vacate([(chance.randrange(nodes), vector, (), None)], chance.choice((1, -1)))
        else:
            got = take_some(chance, capacity)
            if got is not None:
                taken.append((capacity, got))
        agrees(chance.choice(capacities), chance.choice(REQUESTS))


def test_a_fork_keeps_its_free_capacity_when_its_origin_is_used_up() -> None:
    origin = FreeCapacity(cluster(2)).fork()
    fork = origin.fork()
    vector = origin.table.vector(REQUESTS[1].resources)
    origin.take(vector, np.array([0]), np.array([4]))
    assert fork.total_fit(REQUESTS[1]) == 8
    assert fork.fit(REQUESTS[1]).total == 8
    assert origin.total_fit(REQUESTS[1]) == 4


@given(st.integers(0, 10_000), st.sampled_from((3, 600)))
def test_the_capacities_of_a_forked_table_go_their_own_ways(seed: int, nodes: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    table = cluster(nodes)
    capacities = [FreeCapacity(table), FreeCapacity(table, empty=True)]
    for capacity in capacities:
        for request in REQUESTS:
            agrees(capacity, request)
    fork = table.fork()
    capacities += [capacity.on(fork) for capacity in capacities]
    for _ in range(10):
        some = chance.choice((table, fork))
        changed = chance.randrange(nodes)
        size, used = chance.randrange(9), chance.randrange(5)
        resources = {"cpu": 8000, GPU: size * DEVICE}
        labels = {"zone": chance.choice("ab")}
        at = some.put(f"n{changed}", NodeSpec(resources, {GPU: used * DEVICE}, labels, slots=9))
        for capacity in capacities:
            if capacity.table is some:
                capacity.note(np.array([at]))
        agrees(chance.choice(capacities), chance.choice(REQUESTS))
    for capacity in capacities:
        for request in REQUESTS:
            agrees(capacity, request)
