"""The division of a cluster among queues, and the questions that a pass asks about shares."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.model import Queue
from phalanx.plan.fairshare import division
from phalanx.plan.fairshare.division import equal_dominant_shares, water_fill
from phalanx.plan.fairshare.queue_tree import QueueLayout
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.placement.amounts import amounts_by_row
from phalanx.plan.state.nodes import Floats, NodeSpec, NodeTable


def shares_of(*queues: Queue, **capacity: int) -> FairShares:
    table = NodeTable()
    table.put("node", NodeSpec(capacity, {}, {}))
    return FairShares(QueueLayout({queue.name: queue for queue in queues}, table), table)


def request(shares: FairShares, queue: str, **amounts: int) -> None:
    shares.request(queue, amounts_by_row(amounts, shares.table))


def use(shares: FairShares, queue: str, **amounts: int) -> None:
    shares.use(queue, amounts_by_row(amounts, shares.table))


def deserved(shares: FairShares, resource: str) -> dict[str, float]:
    row = shares.table.rows[resource]
    return {name: float(branch.deserved[row]) for name, branch in shares.branches.items()}


@pytest.mark.parametrize(
    ("amount", "weights", "demands", "parts"),
    [
        (12, [1, 1], [20, 20], [6, 6]),
        (12, [1, 2], [20, 20], [4, 8]),
        (12, [1, 1], [2, 20], [2, 10]),
        (12, [1, 1], [2, 3], [2, 3]),
        (12, [0, 1], [20, 5], [0, 5]),
        (0, [1, 1], [20, 20], [0, 0]),
    ],
)
def test_an_amount_is_divided_by_weight_up_to_each_demand(
    amount: int, weights: list[int], demands: list[int], parts: list[int]
) -> None:
    divided = water_fill(amount, np.array(weights, float), np.array(demands, float))
    assert divided.tolist() == pytest.approx(parts)


AMOUNTS = st.integers(0, 20)


@given(st.fixed_dictionaries({"gpu": AMOUNTS, "cpu": AMOUNTS}), AMOUNTS, AMOUNTS, AMOUNTS)
def test_a_queue_that_alone_demands_anything_deserves_what_the_division_gives_it(
    requested: dict[str, int], gpus: int, cpus: int, quota: int
) -> None:
    def divided() -> list[dict[str, float]]:
        queues = Queue("a", quota={"gpu": quota}, weight=2), Queue("b", quota={"cpu": quota})
        shares = shares_of(*queues, gpu=gpus, cpu=cpus)
        request(shares, "a", **requested)
        shares.settle()
        return [deserved(shares, resource) for resource in ("gpu", "cpu")]

    with patch.object(division, "_all_to_one", return_value=None):
        expected = divided()
    for each, general in zip(divided(), expected, strict=True):
        assert each == pytest.approx(general)


def test_a_quota_is_granted_first_and_the_rest_is_divided_by_weight() -> None:
    shares = shares_of(Queue("a", quota={"cpu": 2}, weight=2), Queue("b"), cpu=8)
    request(shares, "a", cpu=8)
    request(shares, "b", cpu=8)
    shares.settle()
    assert deserved(shares, "cpu") == pytest.approx({"a": 6, "b": 2})


def test_a_quota_without_demand_is_left_to_the_other_queues() -> None:
    shares = shares_of(Queue("a", quota={"cpu": 6}), Queue("b"), cpu=8)
    request(shares, "a", cpu=1)
    request(shares, "b", cpu=8)
    shares.settle()
    assert deserved(shares, "cpu") == pytest.approx({"a": 1, "b": 7})


def test_quotas_above_the_capacity_are_scaled_down() -> None:
    shares = shares_of(Queue("a", quota={"cpu": 8}), Queue("b", quota={"cpu": 4}), cpu=3)
    request(shares, "a", cpu=8)
    request(shares, "b", cpu=8)
    shares.settle()
    assert deserved(shares, "cpu") == pytest.approx({"a": 2, "b": 1})


def test_a_limit_bounds_the_demand() -> None:
    shares = shares_of(Queue("a", limit={"cpu": 2}), Queue("b"), cpu=8)
    request(shares, "a", cpu=8)
    request(shares, "b", cpu=8)
    shares.settle()
    assert deserved(shares, "cpu") == pytest.approx({"a": 2, "b": 6})


def test_a_parent_without_a_quota_has_the_quotas_of_its_children() -> None:
    children = [Queue(name, parent="lab", quota={"cpu": 3}) for name in ("a", "b")]
    shares = shares_of(Queue("lab"), *children, Queue("other"), cpu=8)
    for name in ("a", "b", "other"):
        request(shares, name, cpu=8)
    shares.settle()
    assert deserved(shares, "cpu") == pytest.approx({"lab": 7, "a": 3.5, "b": 3.5, "other": 1})


def _order(shares: FairShares, queue: str, need: Floats) -> tuple[bool, float]:
    branch = shares.branches[queue]
    return not shares.stays_within_share(branch, need), shares.usage(branch, need)[1]


@pytest.mark.parametrize(("of_a", "of_b"), [(9, 9), (5, 3), (4, 2), (100, 3)])
def test_the_example_of_dominant_resource_fairness_gives_three_and_two_tasks(
    of_a: int, of_b: int
) -> None:
    """The example of the paper: tasks of 1 CPU and 4 GB beside tasks of 3 CPU and 1 GB."""
    shares = shares_of(Queue("a"), Queue("b"), cpu=9, memory=18)
    tasks = {"a": {"cpu": 1, "memory": 4}, "b": {"cpu": 3, "memory": 1}}
    for name, count in (("a", of_a), ("b", of_b)):
        request(shares, name, **{row: count * amount for row, amount in tasks[name].items()})
    shares.settle()
    assert deserved(shares, "cpu") == pytest.approx({"a": 3, "b": 6})
    needs = {name: amounts_by_row(task, shares.table) for name, task in tasks.items()}
    placed = {"a": 0, "b": 0}
    while True:
        name = min(tasks, key=lambda name: _order(shares, name, needs[name]))
        after = shares.root.used + needs[name]
        if bool((after > shares.capacity)[shares.shared].any()):
            break
        shares.use(name, needs[name])
        placed[name] += 1
    assert placed == {"a": 3, "b": 2}


def _part_used(shares: FairShares, queue: str) -> float:
    return shares.usage(shares.branches[queue], amounts_by_row({"gpu": 1}, shares.table))[0]


@pytest.mark.parametrize(("cpus_of_b", "part"), [(0, 0.25), (8, 0.25), (9, 1.0)])
def test_of_a_resource_that_is_enough_for_all_no_part_counts(cpus_of_b: int, part: float) -> None:
    shares = shares_of(Queue("a"), Queue("b"), gpu=8, cpu=16)
    use(shares, "a", gpu=1, cpu=8)
    request(shares, "a", gpu=3)
    request(shares, "b", gpu=8, cpu=cpus_of_b)
    shares.settle()
    assert _part_used(shares, "a") == pytest.approx(part)


def test_where_no_resource_is_contended_all_count() -> None:
    shares = shares_of(Queue("a"), Queue("b"), gpu=8, cpu=16)
    use(shares, "a", gpu=1, cpu=8)
    request(shares, "a", gpu=3)
    shares.settle()
    assert _part_used(shares, "a") == 1.0


def test_resources_are_contended_among_siblings() -> None:
    """The children of lab want 6 GPUs together, and lab deserves 4; there is enough CPU for all."""
    children = [Queue(name, parent="lab") for name in ("a", "b")]
    shares = shares_of(Queue("lab"), *children, Queue("other"), gpu=8, cpu=16)
    use(shares, "a", gpu=1, cpu=4)
    request(shares, "a", gpu=2)
    request(shares, "b", gpu=3, cpu=4)
    request(shares, "other", gpu=8)
    shares.settle()
    assert [_part_used(shares, name) for name in ("a", "lab")] == pytest.approx([1 / 2, 1 / 4])


@pytest.mark.parametrize(
    ("weights", "demands", "parts"),
    [
        ([1, 1], [[9, 36], [27, 9]], [[3, 12], [6, 2]]),
        ([2, 1], [[9, 36], [27, 9]], [[54 / 13, 216 / 13], [54 / 13, 18 / 13]]),
        ([1, 0], [[9, 36], [27, 9]], [[4.5, 18], [0, 0]]),
        ([1, 1], [[1, 4], [27, 9]], [[1, 4], [8, 8 / 3]]),
        ([1, 1], [[0, 36], [27, 0]], [[0, 18], [9, 0]]),
        ([1, 1], [[9, 0], [9, 0]], [[4.5, 0], [4.5, 0]]),
    ],
)
def test_dominant_shares_grow_together_until_a_resource_is_used_up(
    weights: list[int], demands: list[list[int]], parts: list[list[float]]
) -> None:
    amounts = np.array([9.0, 18.0])
    divided = equal_dominant_shares(amounts, np.array(weights, float), np.array(demands, float))
    assert divided == pytest.approx(np.array(parts))


def test_the_first_limit_on_the_way_to_the_root_binds() -> None:
    shares = shares_of(Queue("lab", limit={"cpu": 3}), Queue("a", parent="lab"), Queue("b"), cpu=8)
    use(shares, "a", cpu=2)
    need = amounts_by_row({"cpu": 2}, shares.table)
    assert shares.limits.binding([("a", need)]) == ("lab", "cpu")
    assert shares.limits.binding([("b", need)]) is None
    assert shares.limits.remaining() == {"lab": [("lab", "cpu", 1.0)], "a": [("lab", "cpu", 1.0)]}


def test_a_cluster_without_workers_is_divided_into_nothing() -> None:
    shares = equal_dominant_shares(np.zeros(0), np.ones(2), np.zeros((2, 0)))
    assert shares.shape == (2, 0)
