"""A gang that is submitted in parts, with real processes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet
from tests.manifests import pod

GROUP = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: NAME}
spec: {minMember: 3}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("parts")) as running:
        running.work("a")
        yield running


def member(fleet: Fleet, gang: str, number: int) -> str:
    text = pod(f"{gang}-{number}", labels=f"{{scheduling.x-k8s.io/pod-group: {gang}}}")
    return text.replace("[train]", json.dumps(fleet.program))


def why(fleet: Fleet, job: str) -> str:
    """What every way to ask says."""
    answer = fleet.terminal.type("why", job).out
    [line] = [line for line in answer.splitlines() if line.startswith(job)]
    reason = line.removeprefix(f"{job}: pending: ")
    assert reason in fleet.terminal.type("jobs").out
    assert f"pending: {reason}" in fleet.terminal.type("job", job).out
    return reason


def test_pods_are_pending_until_the_last_member_of_their_group_is_submitted(fleet: Fleet) -> None:
    pods = [member(fleet, "web", n) for n in range(3)]
    [job] = fleet.submit(pods[0] + pods[1])
    assert why(fleet, job) == "2 members submitted, the PodGroup is missing"
    assert fleet.submit(GROUP.replace("NAME", "web")) == [job]
    assert why(fleet, job) == "2 of 3 members submitted"
    assert {task.attempt for task in fleet.client.get(job).tasks} == {0}
    assert fleet.submit(pods[2]) == [job]
    assert {task.attempt for task in fleet.runs(job).tasks} == {1}
    fleet.end(job)
    assert fleet.ends(job).phase == "done"
    story = fleet.terminal.type("events", job).out
    assert "a PodGroup joined: 2 tasks so far" in story
    assert "web-2 joined: 3 tasks so far" in story


def test_a_group_without_pods_is_a_job_that_can_be_shown_and_cancelled(fleet: Fleet) -> None:
    [job] = fleet.submit(GROUP.replace("NAME", "early"))
    assert why(fleet, job) == "0 of 3 members submitted"
    for command in ("tasks", "logs", "events"):
        assert fleet.terminal.type(command, job).status == 0, command
    assert fleet.terminal.type("cancel", job).status == 0
    assert fleet.ends(job).phase == "cancelled"


def test_a_member_with_conflicting_fields_is_refused_and_both_members_are_named(
    fleet: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "late.yaml"
    [job] = fleet.submit(GROUP.replace("NAME", "odd") + member(fleet, "odd", 0))
    file.write_text(member(fleet, "odd", 1).replace("spec: {", "spec: {priority: 7, "))
    said = fleet.terminal.type("submit", "-f", str(file))
    assert said.status == 2
    assert f"phalanx: {file}: priority is 7 for odd-1 and not set for odd-0" in said.err
    assert fleet.client.get(job).size == 1
    assert fleet.terminal.type("cancel", job).status == 0
