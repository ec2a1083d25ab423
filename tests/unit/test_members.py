"""Gangs that are submitted in parts: nothing starts before all members are there."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.driver import Driver
from tests.manifests import bundled, pod

from phalanx.core.changes import Changes
from phalanx.core.errors import Conflict, Invalid
from phalanx.core.events import (
    CancelRequested,
    GangGathered,
    MembersJoined,
    Placed,
    Placement,
    PriorityChanged,
)
from phalanx.core.model import Assignment, Phase
from phalanx.core.reasons import WaitingForMembers, own_reason
from phalanx.core.spec.native_form import native
from phalanx.core.states import State
from phalanx.plan.cycle import plan
from phalanx.plan.state.planner_state import PlannerState

IN_GROUP = "{scheduling.x-k8s.io/pod-group: web}"
PREFIX = "gang.scheduling.koordinator.sh/"


def group(least: int = 3, more: str = "", **meta: str) -> str:
    words = "".join(f", {key}: {value}" for key, value in meta.items())
    return f"""
---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {{name: web{words}}}
spec: {{minMember: {least}{more and ", "}{more}}}
"""


def member(name: str, spec: str = "") -> str:
    return pod(name, labels=IN_GROUP, spec=spec)


def annotated(name: str, **keys: object) -> str:
    words = {"name": "web"} | keys
    pairs = ", ".join(f"{PREFIX}{key.replace('_', '-')}: {word}" for key, word in words.items())
    return pod(name, annotations=f"{{{pairs}}}")


class Parts(Driver):
    """A cluster to which files with parts of one gang are given."""

    def begin(self, text: str) -> str:
        found = bundled(text)
        [spec] = found.jobs
        return self.submit(spec, members=found.part(spec))

    def event(self, job: str, text: str) -> MembersJoined:
        found = bundled(text)
        [spec] = found.jobs
        part = found.part(spec)
        assert part is not None
        return MembersJoined(job, spec, part)

    def join(self, job: str, text: str) -> Changes:
        return self.apply(self.event(job, text))

    def restart(self) -> None:
        super().restart()
        for worker in self.cluster.nodes:
            self.inventory(worker)

    def reason(self, job: str) -> Any:
        return own_reason(self.job(job), self.now)

    def spec(self, job: str) -> dict[str, object]:
        return native(self.job(job).spec)


@pytest.fixture
def cluster() -> Parts:
    driver = Parts()
    driver.fleet("a", "b", "c", resources={"cpu": 8000}, labels={"zone": "a"})
    return driver


def test_pods_are_pending_until_their_pod_group_is_submitted(cluster: Parts) -> None:
    job = cluster.begin(member("w-0") + member("w-1"))
    assert cluster.reason(job) == WaitingForMembers(2, None)
    assert str(cluster.reason(job)) == ("2 members submitted, the PodGroup is missing")
    assert cluster.join(job, group(2)).replan, "a plan can make something of it now"
    assert cluster.reason(job) is None
    assert cluster.run(job, "a", "b") == 1
    assert cluster.phase(job) is Phase.RUNNING


def test_a_pod_group_is_pending_until_its_pods_are_submitted(cluster: Parts) -> None:
    job = cluster.begin(group(2))
    assert (cluster.reason(job), cluster.states(job)) == (WaitingForMembers(0, 2), [])
    cluster.restart()
    cluster.join(job, member("w-0") + member("w-1"))
    assert cluster.states(job) == [State.BLOCKED] * 2
    cluster.run(job, "a", "b")


def test_nothing_starts_before_the_last_needed_member_is_submitted(cluster: Parts) -> None:
    job = cluster.begin(group(3) + member("w-0"))
    for number in (1, 2):
        version = cluster.job(job).version
        start = Placed((Placement(job, version, (Assignment(0, "a"),)),))
        assert cluster.refuse(start, Conflict).endswith("members of it are missing")
        assert str(cluster.reason(job)) == f"{number} of 3 members submitted"
        cluster.restart()
        cluster.join(job, member(f"w-{number}"))
    assert cluster.reason(job) is None
    assert cluster.kinds(job) == ["JobSubmitted", "MembersAdded", "MembersAdded"]
    cluster.run(job, "a", "b", "c")


def test_parts_give_the_same_job_as_one_file(cluster: Parts) -> None:
    files = [
        member("ps-0", "nodeSelector: {zone: a}, terminationGracePeriodSeconds: 60"),
        member("w-0") + member("w-1", "terminationGracePeriodSeconds: 30"),
        group(3, "scheduleTimeoutSeconds: 10") + member("w-2"),
    ]
    job = cluster.begin(files[0])
    for file in files[1:]:
        cluster.join(job, file)
    [whole] = bundled("".join(files)).jobs
    assert cluster.spec(job) == native(whole)
    assert cluster.job(job).spec == whole


def test_roles_of_one_name_that_differ_stay_apart(cluster: Parts) -> None:
    job = cluster.begin(group(2) + member("w-0"))
    cluster.join(job, member("w-1", "nodeSelector: {zone: a}"))
    assert cluster.spec(job)["roles"] == {
        "w": {"command": ["train"]},
        "w-1": {"command": ["train"], "node_selector": {"zone": "a"}},
    }


def test_a_pod_without_its_pod_group_cannot_be_claimed(cluster: Parts) -> None:
    job = cluster.begin(member("w-0"))
    assert cluster.states(job) == [State.BLOCKED]
    cluster.join(job, group(1))
    assert cluster.states(job) == [State.PENDING]


@pytest.mark.parametrize("anew", [True, False])
def test_the_schedule_timeout_begins_when_the_gang_is_complete(cluster: Parts, anew: bool) -> None:
    job = cluster.begin(group(2, "scheduleTimeoutSeconds: 10") + member("w-0"))
    cluster.advance(3600)
    cluster.join(job, member("w-1"))
    cluster.advance(9)
    assert cluster.phase(job) is Phase.PENDING
    if anew:
        cluster.restart()
    cluster.advance(2)
    assert cluster.phase(job) is Phase.TIMED_OUT


def test_an_incomplete_gang_can_be_cancelled(cluster: Parts) -> None:
    for text in (group(2), member("w-0")):
        job = cluster.begin(text)
        cluster.apply(CancelRequested(job))
        assert cluster.phase(job) is Phase.CANCELLED
        assert job not in cluster.cluster.gangs


def test_a_priority_that_an_operator_gave_stays(cluster: Parts) -> None:
    job = cluster.begin(group(2) + member("w-0", "priority: 5"))
    cluster.apply(PriorityChanged(job, 9))
    cluster.join(job, member("w-1", "priority: 5"))
    assert cluster.job(job).priority == 9


def test_a_group_that_a_later_part_names_is_known(cluster: Parts) -> None:
    names = '{pod-group.scheduling.sigs.k8s.io/groups: \'["default/web", "default/db"]\'}'
    job = cluster.begin(member("w-0"))
    cluster.join(job, group(1, annotations=names))
    assert cluster.cluster.wanted_by == {"default/web": {job}, "default/db": {job}}


# Whose word counts


def test_koordinators_annotations_count_more_than_a_pod_group(cluster: Parts) -> None:
    whole = {"match": "once-satisfied", "schedule_timeout": "10s", "gather_timeout": "1m"}
    for first in (True, False):
        files = [
            annotated("w-0", min_available=1, waiting_time="60s"),
            group(2, "scheduleTimeoutSeconds: 10"),
        ]
        job = cluster.begin(files[1 if first else 0].replace("min-available: 1", "mode: Strict"))
        cluster.join(job, files[0 if first else 1])
        assert {field: cluster.spec(job)[field] for field in whole} == whole
        cluster.apply(CancelRequested(job))


def test_a_pod_group_counts_more_than_koordinators_defaults(cluster: Parts) -> None:
    job = cluster.begin(annotated("w-0"))
    cluster.join(job, group(1, "scheduleTimeoutSeconds: 10"))
    fields = [cluster.spec(job)[field] for field in ("schedule_timeout", "gather_timeout", "match")]
    assert fields == ["10s", "10m", "once-satisfied"]


@pytest.mark.parametrize("follows_koordinator", [True, False])
def test_after_its_first_start_a_gang_of_koordinator_is_made_of_ordinary_pods(
    cluster: Parts, follows_koordinator: bool
) -> None:
    notes = {"annotations": f"{{{PREFIX}mode: Strict}}"} if follows_koordinator else {}
    pods = "".join(member(f"w-{n}") for n in range(3))
    job = cluster.begin(group(3, **notes) + pods)
    cluster.run(job, "a", "b", "c")
    cluster.fail(job, 1)
    others = [cluster.states(job)[index] for index in (0, 2)]
    assert others == [State.RUNNING if follows_koordinator else State.PREEMPTING] * 2


def test_that_a_gang_has_started_is_known_after_a_change_of_leader(cluster: Parts) -> None:
    job = cluster.begin("".join(annotated(f"w-{n}", min_available=2) for n in range(2)))
    cluster.run(job, "a", "b")
    Driver.restart(cluster)
    cluster.inventory("a", (f"{job}.0", 1))
    cluster.inventory("b")
    assert cluster.states(job) == [State.RUNNING, State.BLOCKED]


def test_a_strict_gang_of_koordinator_is_pending_as_long_as_it_must(cluster: Parts) -> None:
    job = cluster.begin("".join(annotated(f"w-{n}", min_available=2) for n in range(2)))
    cluster.advance(7 * 86_400)
    assert cluster.phase(job) is Phase.PENDING


# What is refused

REFUSED = {
    "a member twice": (group(3) + member("w-0"), member("w-0"), "name is w-0, a member"),
    "two priorities": (
        group(3) + member("w-0", "priority: 5"),
        member("w-1", "priority: 7"),
        "priority is 7 for w-1 and 5 for w-0, submitted before",
    ),
    "a priority and none": (
        group(3) + member("w-0"),
        member("w-1", "priority: 7"),
        "priority is 7 for w-1 and not set for w-0",
    ),
    "two minimums": (
        group(3) + member("w-0"),
        group(2),
        "min_available is 2 for its PodGroup and 3 for w-0, submitted before",
    ),
    "a policy for a part": (
        group(3) + member("w-0"),
        member("w-1", "restartPolicy: Never"),
        "restart is never for w-1 and task for w-0",
    ),
    "a queue that is none": (
        member("w-0"),
        group(1, "queue: nowhere").replace("x-k8s.io/v1alpha1", "volcano.sh/v1beta1"),
        "queue is nowhere, which does not exist",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_part_that_does_not_fit_changes_nothing(cluster: Parts, what: str) -> None:
    first, second, said = REFUSED[what]
    job = cluster.begin(first)
    assert said in cluster.refuse(cluster.event(job, second), Invalid)


# Members that come later


def test_a_gang_that_has_its_minimum_and_no_place_is_put_together_anew(cluster: Parts) -> None:
    job = cluster.begin(group(2) + member("w-0") + member("ps-0", "nodeSelector: {zone: a}"))
    since = cluster.pending(job).since
    cluster.advance(60)
    cluster.join(job, member("w-1"))
    spec = cluster.spec(job)
    assert spec["roles"] == {
        "w": {"replicas": 2, "command": ["train"]},
        "ps": {"command": ["train"], "node_selector": {"zone": "a"}},
    }
    assert (spec["min_available"], cluster.pending(job).since) == (2, since)


@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
def test_members_join_a_running_gang_behind_the_others(cluster: Parts, policy: str) -> None:
    rule = f"restartPolicy: {policy}"
    other = f"{rule}, nodeSelector: {{zone: a}}"
    job = cluster.begin(group(2) + member("w-0", rule) + member("ps-0", other))
    cluster.run(job, "a", "b")
    cluster.join(job, member("w-1", rule))
    cluster.join(job, member("w-2", rule))
    assert [(t.index, t.role) for t in cluster.gang(job).tasks] == [
        (0, "w"),
        (1, "ps"),
        (2, "w-1"),
        (3, "w-1"),
    ]
    assert cluster.phase(job) is Phase.RUNNING
    assert cluster.job(job).spec.min_available == 2
    [start] = plan(PlannerState.of(cluster.cluster), cluster.now).reserved()
    assert [each.task for each in start.assignments] == [2, 3]
    cluster.place(job, "c", tasks=[2])
    cluster.accept(job)
    cluster.start(job)
    for index in (0, 1, 2):
        cluster.exit(job, index)
    assert cluster.phase(job) is Phase.PENDING, "one member has not run"
    cluster.place(job, "c", tasks=[3])
    cluster.accept(job)
    cluster.start(job)
    cluster.exit(job, 3)
    assert cluster.phase(job) is Phase.DONE


def test_members_that_join_a_reserved_gang_are_not_part_of_its_start(cluster: Parts) -> None:
    job = cluster.begin(group(2) + member("w-0") + member("w-1"))
    cluster.place(job, "a", "b")
    cluster.join(job, member("w-2"))
    cluster.accept(job)
    assert cluster.states(job)[2] is State.BLOCKED
    cluster.start(job)
    assert cluster.phase(job) is Phase.RUNNING


def test_a_member_joins_a_gang_of_one_that_is_backing_off(cluster: Parts) -> None:
    job = cluster.begin(group(1) + member("w-0"))
    cluster.run(job, "a")
    cluster.fail(job, 0)
    assert cluster.states(job) == [State.PENDING]
    cluster.join(job, member("w-1"))
    assert cluster.states(job) == [State.BLOCKED] * 2


def test_a_member_joins_a_gang_that_gathers_places(cluster: Parts) -> None:
    pods = "".join(annotated(f"w-{n}", min_available=2, mode="NonStrict") for n in range(2))
    job = cluster.begin(pods)
    version = cluster.job(job).version
    cluster.apply(GangGathered(Placement(job, version, (Assignment(1, "a"),))))
    cluster.join(job, annotated("w-2", min_available=2, mode="NonStrict"))
    gathered = cluster.pending(job).gathered
    assert gathered is not None
    assert gathered.places == (Assignment(1, "a"),)


def test_a_gang_that_has_been_placed_keeps_what_it_was_told(cluster: Parts) -> None:
    job = cluster.begin(group(2) + member("w-0") + member("w-1"))
    cluster.run(job, "a", "b")
    said = cluster.refuse(cluster.event(job, annotated("w-2", min_available=3)), Invalid)
    assert "min_available is 3 for w-2 and 2 for w-0, submitted before" in said
    cluster.join(job, member("w-3", "terminationGracePeriodSeconds: 60"))
    assert cluster.spec(job)["grace"] == "1m"


def test_no_member_joins_a_gang_that_stops_or_a_job_that_is_no_gang_of_pods(
    cluster: Parts,
) -> None:
    job = cluster.begin(group(2) + member("w-0") + member("w-1"))
    cluster.run(job, "a", "b")
    event = cluster.event(job, member("w-2"))
    cluster.apply(CancelRequested(job))
    assert "is stopping; submit the members again" in cluster.refuse(event, Conflict)
    other = cluster.submit(replace(event.spec, name="other"))
    assert "not submitted as pods" in cluster.refuse(replace(event, job=other), Conflict)
