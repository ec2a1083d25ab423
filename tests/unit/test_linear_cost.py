"""The steps that a submission takes grow linearly with its roles, tasks and documents.

Steps are lines of Python that were run, which is the same on every machine. A cost that grew with
the square would take four times the steps for twice the input.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import yaml
from tests.builders import a_role, a_spec

from phalanx.api.auth import ADMIN
from phalanx.api.plain_views import plain_task_views
from phalanx.api.views import job_detail
from phalanx.core.cluster import Cluster
from phalanx.core.events import Submitted, WorkerRegistered
from phalanx.core.model import Protocol
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import job_spec
from phalanx.engine.agent_instructions import GangEnvironments, instructions_for
from phalanx.engine.planner_loop import event_of
from phalanx.manifest import bundle
from phalanx.plan.cycle import plan
from phalanx.plan.explain.fits_ever import FitsEver
from phalanx.plan.state.planner_state import PlannerState

FEW, MANY = 60, 120
#: The steps for twice the input, in proportion to those for the input.
AT_MOST = 2.5


def steps_of(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def with_roles(count: int, **fields: Any) -> JobSpec:
    """A job whose roles all differ, with references to each other."""
    roles = tuple(
        a_role(
            name=f"r{n}",
            replicas=2,
            resources={"cpu": n + 1},
            env={"INDEX": "$(task.index)", "OTHERS": "$(count.r0)"},
            **fields,
        )
        for n in range(count)
    )
    return a_spec(queue="default", roles=roles, min_available=1)


def cluster_with(spec: JobSpec) -> Cluster:
    cluster = Cluster()
    worker = WorkerRegistered("w-1", "i", Protocol.PLAIN, "w-1", {"cpu": 10**9}, {}, 10_000)
    cluster.apply(worker, 1)
    cluster.apply(Submitted("j-1", spec), 1)
    return cluster


def placed(spec: JobSpec) -> Cluster:
    cluster = cluster_with(spec)
    [decision] = plan(PlannerState.of(cluster), 1).decisions
    cluster.apply(event_of(decision), 1)
    return cluster


def a_submission(count: int) -> Callable[[], object]:
    spec = with_roles(count)
    return lambda: cluster_with(spec)


def a_warning(count: int) -> Callable[[], object]:
    spec = with_roles(count)
    ever = FitsEver(cluster_with(spec).nodes)
    return lambda: ever.why_never(ever.gang(spec))


def a_plan(count: int) -> Callable[[], object]:
    cluster = cluster_with(with_roles(count))
    return lambda: plan(PlannerState.of(cluster), 1)


def an_elastic_plan(count: int) -> Callable[[], object]:
    cluster = cluster_with(with_roles(count, min=0))
    return lambda: plan(PlannerState.of(cluster), 1)


def a_start(count: int) -> Callable[[], object]:
    spec = with_roles(count)
    return lambda: placed(spec)


def the_state_of_a_running_gang(count: int) -> Callable[[], object]:
    cluster = placed(with_roles(count))
    return lambda: PlannerState.of(cluster)


def instructions(count: int) -> Callable[[], object]:
    cluster = placed(with_roles(count))
    return lambda: instructions_for(cluster, cluster.nodes["w-1"], GangEnvironments())


def views(count: int) -> Callable[[], object]:
    gang = cluster_with(with_roles(count)).gangs["j-1"]
    return lambda: (job_detail(gang.job, gang.tasks, ADMIN), plain_task_views(gang.job, gang.tasks))


def a_file_of_roles(count: int) -> Callable[[], object]:
    document = {"roles": {f"r{n}": {"command": "a"} for n in range(count)}}
    return lambda: bundle.read(yaml.safe_dump(document).encode())


def a_file_of_jobs(count: int) -> Callable[[], object]:
    return lambda: bundle.read(b"---\ncommand: a\n" * count)


def a_file_of_pods(count: int) -> Callable[[], object]:
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}}
    labels = {"pod-group.scheduling.sigs.k8s.io": "g"}
    pods: list[object] = [
        {**pod, "metadata": {"name": f"p{n}", "labels": labels, "annotations": {f"a{n}": "b"}}}
        for n in range(count)
    ]
    return lambda: bundle.bundle(pods)


def a_job_with_many_problems(count: int) -> Callable[[], object]:
    def work() -> None:
        with pytest.raises(Exception, match="not a known field"):
            job_spec({"roles": {"a": {"command": "b"}} | {f"r{n}": {"x": 1} for n in range(count)}})

    return work


@pytest.mark.parametrize(
    "prepared",
    [
        a_submission,
        a_warning,
        a_plan,
        an_elastic_plan,
        a_start,
        the_state_of_a_running_gang,
        instructions,
        views,
        a_file_of_roles,
        a_file_of_jobs,
        a_file_of_pods,
        a_job_with_many_problems,
    ],
)
def test_twice_the_input_takes_about_twice_the_steps(
    prepared: Callable[[int], Callable[[], object]],
) -> None:
    prepared(2)()  # what is computed once for all
    few, many = steps_of(prepared(FEW)), steps_of(prepared(MANY))
    assert many < AT_MOST * few, (few, many)
