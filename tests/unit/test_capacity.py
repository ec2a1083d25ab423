"""What a view keeps of what it has worked out is what it would find out anew."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.node import DEVICE, GPU
from phalanx.plan.model import TaskRequest
from phalanx.plan.state.capacity import FreeCapacity, TakenCapacity, count
from phalanx.plan.state.nodes import NodeSpec, NodeTable

ASKS = (
    TaskRequest((("cpu", 1000),)),
    TaskRequest((("cpu", 2000), (GPU, DEVICE))),
    TaskRequest(((GPU, 2 * DEVICE),), (("zone", "a"),)),
    TaskRequest(((GPU, DEVICE // 4),)),
    TaskRequest(),
)


def cluster(nodes: int) -> NodeTable:
    table = NodeTable()
    for n in range(nodes):
        size = {"cpu": 8000, GPU: 4 * DEVICE}
        table.put(f"n{n}", NodeSpec(size, {}, {"zone": "ab"[n % 2]}, slots=9))
    for ask in ASKS:
        table.vector(ask.resources)
    return table


def agrees(view: FreeCapacity, ask: TaskRequest) -> None:
    """The view's answers, against a count of all nodes from nothing."""
    table = view.table
    fresh = count(table.vector(ask.resources), view.free, view.partial, table.mask(ask))
    assert view.total_fit(ask) == fresh.sum()
    assert (view.fit(ask).counts == fresh).all()
    assert view.fit(ask).total == fresh.sum()
    wanted = min(3, int(fresh.sum()))
    if wanted:
        nodes, counts = view.fullest(ask, wanted)
        assert counts.sum() == wanted
        assert (counts <= fresh[nodes]).all()
        chosen = view.leftover(ask, nodes)
        others = np.setdiff1d(np.flatnonzero(fresh), nodes)
        assert chosen.max() <= view.leftover(ask, others).min(initial=np.inf)


def take_some(chance: random.Random, view: FreeCapacity) -> TakenCapacity | None:
    ask = chance.choice(ASKS)
    counts = view.fit(ask).counts
    nodes = np.flatnonzero(counts)
    if not len(nodes):
        return None
    some = np.array(sorted(chance.sample(nodes.tolist(), min(len(nodes), 3))))
    return view.take(view.table.vector(ask.resources), some, np.minimum(counts[some], 2))


@given(st.integers(0, 10_000), st.sampled_from((3, 40, 600)))
def test_forks_take_and_give_back_and_always_know_what_is_free(seed: int, nodes: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    views = [FreeCapacity(cluster(nodes)).fork()]
    taken: list[tuple[FreeCapacity, TakenCapacity]] = []
    for _ in range(25):
        view = chance.choice(views)
        what = chance.randrange(5)
        if what == 0 and len(views) < 4:
            views.append(view.fork())
        elif what == 1 and taken and taken[-1][0] is view:
            view.give_back(taken.pop()[1])
        elif what == 2:
            vector = view.table.vector(ASKS[0].resources)
            view.vacate([(chance.randrange(nodes), vector, ())], chance.choice((1, -1)))
        else:
            got = take_some(chance, view)
            if got is not None:
                taken.append((view, got))
        agrees(chance.choice(views), chance.choice(ASKS))


def test_a_fork_keeps_what_was_free_when_its_origin_is_used_up() -> None:
    origin = FreeCapacity(cluster(2)).fork()
    fork = origin.fork()
    vector = origin.table.vector(ASKS[1].resources)
    origin.take(vector, np.array([0]), np.array([4]))
    assert fork.total_fit(ASKS[1]) == 8
    assert fork.fit(ASKS[1]).total == 8
    assert origin.total_fit(ASKS[1]) == 4
