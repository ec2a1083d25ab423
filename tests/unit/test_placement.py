"""Trial placement of single gangs on a small node table."""

from typing import Any

import numpy as np

from phalanx.core.node import DEVICE, GPU
from phalanx.core.spec.job import Pack, PackMode
from phalanx.plan.model import PendingGang, RoleRequest, TaskRequest, selecting
from phalanx.plan.placement.headroom import Headroom
from phalanx.plan.placement.trial import PlacementTrial, place_all
from phalanx.plan.state.capacity import FreeCapacity
from phalanx.plan.state.nodes import NodeSpec, NodeTable


def free_nodes(**nodes: dict[str, Any]) -> FreeCapacity:
    """Free capacity of nodes given as name={cpu: cores, gpu: devices, label: value}."""
    table = NodeTable()
    for name, fields in nodes.items():
        resources = {"cpu": fields.get("cpu", 0) * 1000, GPU: fields.get("gpu", 0) * DEVICE}
        labels = {key: value for key, value in fields.items() if isinstance(value, str)}
        table.put(name, NodeSpec(resources, {}, labels))
    return FreeCapacity(table).fork()


def role(name: str, tasks: range, *, cpu: int = 0, gpu: int = 0, **fields: Any) -> RoleRequest:
    """A role of which all tasks are needed."""
    amounts = (("cpu", cpu * 1000), (GPU, gpu * DEVICE))
    resources = tuple((resource, amount) for resource, amount in amounts if amount)
    return RoleRequest(name, TaskRequest(resources, **fields), tuple(tasks), len(tasks))


def gang(*roles: RoleRequest, **fields: Any) -> PendingGang:
    size = sum(len(role.tasks) for role in roles)
    return PendingGang(
        *("j-1", "default/g", 0, "q", 0, 0), size=size, roles=roles, need=size, **fields
    )


def nodes_of(trial: PlacementTrial) -> list[str]:
    return [assignment.worker for assignment in trial.assignments()]


def test_roles_placed_in_a_second_order_do_not_count_the_tasks_of_the_first() -> None:
    """The workers are placed first, which leaves the stores no node. The limit of one worker per
    node must not count those workers when the roles are placed in the other order."""
    free = free_nodes(
        n1={"cpu": 8, "gpu": 4}, n2={"cpu": 2, "gpu": 4, "disk": "fast"}, n3={"cpu": 16, "gpu": 4}
    )
    workers = role("worker", range(2), cpu=1, gpu=1, per_node=1)
    stores = role("store", range(2, 4), cpu=1, nodes=selecting({"disk": "fast"}))
    trial = PlacementTrial(gang(workers, stores), (free,))
    assert trial.place_minimum()
    assert nodes_of(trial) == ["n1", "n3", "n2", "n2"]


def test_a_task_goes_where_its_cpu_leaves_the_fewest_gpus_useless() -> None:
    """Best fit alone would fill n1, whose last 3 GPUs would have no CPU left."""
    free = free_nodes(n1={"cpu": 16, "gpu": 4}, n2={"cpu": 64, "gpu": 8})
    trial = PlacementTrial(gang(role("worker", range(1), cpu=15, gpu=1)), (free,))
    assert trial.place_minimum()
    assert nodes_of(trial) == ["n2"]


def test_a_task_without_gpus_leaves_the_gpus_of_a_node_their_cpu() -> None:
    free = free_nodes(n1={"cpu": 16, "gpu": 4}, n2={"cpu": 64, "gpu": 8})
    trial = PlacementTrial(gang(role("worker", range(1), cpu=12)), (free,))
    assert trial.place_minimum()
    assert nodes_of(trial) == ["n2"]


def test_a_fraction_goes_to_a_shared_gpu_before_it_breaks_a_whole_one() -> None:
    free = free_nodes(n1={"cpu": 64, "gpu": 2}, n2={"cpu": 64, "gpu": 2})
    half = TaskRequest((("cpu", 1000), (GPU, 500)))
    free.take(free.table.vector(half.resources), np.array([1]), np.array([1]))
    whole = TaskRequest((("cpu", 1000), (GPU, DEVICE)))
    free.take(free.table.vector(whole.resources), np.array([0]), np.array([1]))
    free.take(free.table.vector((("cpu", 20_000),)), np.array([0]), np.array([1]))
    trial = PlacementTrial(gang(RoleRequest("worker", half, (0,), 1)), (free,))
    assert trial.place_minimum()
    assert nodes_of(trial) == ["n2"]


def test_a_trial_that_is_undone_gives_everything_back() -> None:
    free = free_nodes(n1={"gpu": 2}, n2={"gpu": 2})
    before = free.free.copy()
    trial = PlacementTrial(gang(role("worker", range(3), gpu=1)), (free,))
    assert trial.place_minimum()
    assert trial.count == 3
    trial.undo()
    assert trial.count == 0
    assert (free.free == before).all()


def test_a_minimum_that_does_not_fit_takes_nothing() -> None:
    free = free_nodes(n1={"gpu": 2})
    before = free.free.copy()
    trial = PlacementTrial(gang(role("worker", range(3), gpu=1)), (free,))
    assert not trial.place_minimum()
    assert (free.free == before).all()


def test_a_task_needs_a_place_in_all_capacities() -> None:
    now = free_nodes(n1={"gpu": 2}, n2={"gpu": 4})
    later = now.fork()
    vector = now.table.vector(((GPU, DEVICE),))
    later.take(vector, np.array([0]), np.array([2]))
    trial = PlacementTrial(gang(role("worker", range(2), gpu=1)), (now, later))
    assert trial.place_minimum()
    assert nodes_of(trial) == ["n2", "n2"]


def test_a_required_domain_is_the_tightest_one_that_holds_the_gang() -> None:
    free = free_nodes(
        a={"gpu": 8, "rack": "large"}, b={"gpu": 3, "rack": "right"}, c={"gpu": 1, "rack": "small"}
    )
    pack = Pack("rack", PackMode.REQUIRE)
    trial = PlacementTrial(gang(role("worker", range(2), gpu=1), pack=pack), (free,))
    assert trial.place_minimum()
    assert nodes_of(trial) == ["b", "b"]


def test_gangs_that_start_together_are_tried_in_both_orders() -> None:
    free = free_nodes(n1={"gpu": 2, "kind": "x"}, n2={"gpu": 4})
    anywhere = gang(role("worker", range(1), gpu=2))
    bound = gang(role("worker", range(1), gpu=2, nodes=selecting({"kind": "x"})))
    trials = place_all([PlacementTrial(anywhere, (free,)), PlacementTrial(bound, (free,))])
    assert trials is not None
    assert [(trial.gang, nodes_of(trial)) for trial in trials] == [
        (bound, ["n1"]),
        (anywhere, ["n2"]),
    ]


def test_gathered_places_stay_within_the_headroom_of_the_queue() -> None:
    free = free_nodes(n1={"gpu": 8})
    workers = role("worker", range(4), gpu=2)
    trial = PlacementTrial(gang(workers, strict=False), (free,))
    amounts = np.full(len(free.table.rows), np.inf)
    amounts[free.table.rows[GPU]] = 5 * DEVICE
    headroom = Headroom(amounts, free.table)
    assert trial.gather(headroom) == 2
    assert headroom.allows(workers, 4) == 0
