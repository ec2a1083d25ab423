"""Koordinator's annotations on pods and on PodGroups."""

import pytest
from tests.manifests import bundled, converted, only, pod, refused, warnings

from phalanx.core.time_units import MINUTE

PREFIX = "gang.scheduling.koordinator.sh/"


def annotated(**keys: object) -> str:
    words = [f"{PREFIX}{key.replace('_', '-')}: {value}" for key, value in keys.items()]
    return "{" + ", ".join(words) + "}"


def gang(name: str = "gang-a", least: object = 2, pods: int = 2, **keys: object) -> str:
    words = annotated(name=name, min_available=least, **keys)
    return "".join(pod(f"{name}-{n}", annotations=words) for n in range(pods))


def test_two_annotations_make_a_gang_with_koordinators_defaults() -> None:
    assert only(gang()) == {
        "name": "gang-a",
        "roles": {"gang-a": {"replicas": 2, "command": ["train"]}},
        "match": "once-satisfied",
        "gather_timeout": "10m",
        "restart": "task",
    }


def test_the_default_waiting_time_is_a_setting_of_the_server() -> None:
    assert only(gang(), waiting_time=20 * MINUTE)["gather_timeout"] == "20m"
    assert only(gang(waiting_time="soon"), waiting_time=20 * MINUTE)["gather_timeout"] == "20m"
    assert only(gang(waiting_time="90m"), waiting_time=20 * MINUTE)["gather_timeout"] == "90m"


def test_every_annotation_is_read() -> None:
    job = only(
        gang(
            least=1,
            waiting_time="3600s",
            total_number=5,
            mode="NonStrict",
            match_policy="only-waiting",
            groups='["default/gang-a"]',
            network_topology_spec='\'{"gatherStrategy": [{"layer": "rack", "strategy":'
            ' "MustGather"}]}\'',
        )
    )
    del job["roles"], job["restart"]
    assert job == {
        "name": "gang-a",
        "min_available": 1,
        "mode": "non-strict",
        "group": ["default/gang-a"],
        "gather_timeout": "1h",
        "pack": {"by": "rack"},
    }


@pytest.mark.parametrize("groups", ['["default/a", "default/b"]', '\'["default/a", "default/b"]\''])
def test_groups_are_a_list_or_a_list_in_a_string(groups: str) -> None:
    first, second = converted(gang("a", 1, 1, groups=groups) + gang("b", 1, 1, groups=groups))
    assert first["group"] == second["group"] == ["default/a", "default/b"]


def test_groups_have_an_older_name() -> None:
    assert only(gang(gang_groups='["default/gang-a"]'))["group"] == ["default/gang-a"]


@pytest.mark.parametrize("name", ["Gang_A", "-a", "a..b"])
def test_the_name_of_a_gang_is_a_dns_subdomain(name: str) -> None:
    words = annotated(name=name, min_available=1)
    [(path, message)] = refused(pod("a-0", annotations=words)).items()
    assert path.endswith(f'annotations["{PREFIX}name"]')
    assert "use lower-case letters" in message


def test_a_gang_without_its_minimum_is_completed_by_a_pod_group() -> None:
    [part] = bundled(pod("a-0", annotations=annotated(name="gang-a"))).parts.values()
    assert part.needed is None


def test_empty_groups_are_none() -> None:
    assert "group" not in only(gang(groups='""'))


@pytest.mark.parametrize("given", ["soon", "-5s", "0s"])
def test_an_invalid_waiting_time_is_read_as_the_default_with_a_warning(given: str) -> None:
    text = gang(waiting_time=given)
    assert only(text)["gather_timeout"] == "10m"
    [note] = warnings(text)
    assert note.endswith("read as the default of the server")


def test_an_unknown_mode_is_read_as_strict_with_a_warning() -> None:
    text = gang(pods=1, least=1, mode="Loose")
    assert "mode" not in only(text)
    assert warnings(text) == [
        f'document 1: metadata.annotations["{PREFIX}mode"] is "Loose", read as Strict'
    ]


@pytest.mark.parametrize(
    ("total", "note", "read"),
    [("1", "is 1, read as the minimum of 2", 2), ("many", 'is "many", read as the minimum', None)],
)
def test_a_total_below_the_minimum_is_read_as_the_minimum(
    total: str, note: str, read: int | None
) -> None:
    text = gang(total_number=total)
    [said] = warnings(text)
    assert said.endswith(note)
    [part] = bundled(text).parts.values()
    assert part.total == read


def test_a_gang_that_has_timed_out_is_not_started_again() -> None:
    problems = refused(gang(timeout='"true"'))
    assert all("has timed out" in message for message in problems.values())


def test_an_unknown_annotation_of_koordinator_is_refused() -> None:
    [path, _] = refused(gang(min_avail=3))
    assert path == f'document 1: metadata.annotations["{PREFIX}min-avail"]'


@pytest.mark.parametrize("spec", ["'{'", "'{}'", "7", "'{\"gatherStrategy\": [{}]}'"])
def test_an_invalid_topology_is_refused(spec: str) -> None:
    assert len(refused(gang(network_topology_spec=spec))) == 2


GROUP = """
apiVersion: v1alpha1
kind: PodGroup
metadata:
  creationTimestamp: "2022-07-11T18:26:33Z"
  name: gang-a
  namespace: namespaceA
  annotations:
    gang.scheduling.koordinator.sh/total-number: 5
    gang.scheduling.koordinator.sh/mode: Strict
    gang.scheduling.koordinator.sh/groups: ["namespaceA/gang-a", "namespaceB/gang-b"]
spec:
  minMember: 2
  scheduleTimeoutSeconds: 600
"""
IN_GROUP = {"labels": "{pod-group.scheduling.sigs.k8s.io: gang-a}", "namespace": "namespaceA"}


PLAIN_GROUP = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: web}
spec: {minMember: 2, scheduleTimeoutSeconds: 30}
"""
IN_PLAIN_GROUP = "{scheduling.x-k8s.io/pod-group: web}"


def test_a_pod_group_has_the_same_annotations() -> None:
    text = GROUP + pod("a-0", **IN_GROUP) + pod("a-1", **IN_GROUP)
    assert only(text) == {
        "name": "gang-a",
        "namespace": "namespacea",
        "roles": {"a": {"replicas": 2, "command": ["train"]}},
        "group": ["namespacea/gang-a", "namespaceb/gang-b"],
        "match": "once-satisfied",
        "gather_timeout": "10m",
        "restart": "task",
    }


def test_each_lower_cased_namespace_is_noted_once() -> None:
    text = GROUP + "".join(pod(f"a-{n}", **IN_GROUP) for n in range(5))
    _older, *notes = warnings(text)
    assert [note.partition("names the namespace ")[2] for note in notes] == [
        f'namespace{letter}, read as "namespace{letter.lower()}": namespaces are lower-case'
        for letter in "AB"
    ]


@pytest.mark.parametrize("key", ["total-number: 2", "mode: Strict", "waiting-time: 60s"])
def test_a_pod_group_with_any_annotation_follows_koordinator(key: str) -> None:
    text = PLAIN_GROUP.replace("{name: web}", f"{{name: web, annotations: {{{PREFIX}{key}}}}}")
    job = only(text + "".join(pod(f"w-{n}", labels=IN_PLAIN_GROUP) for n in range(2)))
    assert (job["match"], job["gather_timeout"]) == ("once-satisfied", "30s")
    assert "schedule_timeout" not in job


def test_a_pod_group_without_an_annotation_follows_ack() -> None:
    job = only(PLAIN_GROUP + "".join(pod(f"w-{n}", labels=IN_PLAIN_GROUP) for n in range(2)))
    assert (job.get("match", "only-waiting"), job["schedule_timeout"]) == ("only-waiting", "30s")
    assert "gather_timeout" not in job


def test_annotations_of_pods_take_precedence_over_their_pod_group() -> None:
    words = annotated(name="gang-a", min_available=1, mode="NonStrict", waiting_time="60s")
    members = [pod(f"a-{n}", annotations=words, namespace="namespaceA") for n in range(2)]
    job = only(GROUP + "".join(members))
    assert (job["min_available"], job["mode"], job["gather_timeout"]) == (1, "non-strict", "1m")


def test_a_group_can_have_jobs_of_several_namespaces() -> None:
    names = '["ml/a", "web/b"]'
    text = pod(
        "a-0", annotations=annotated(name="a", min_available=1, groups=names), namespace="ml"
    )
    text += pod(
        "b-0", annotations=annotated(name="b", min_available=1, groups=names), namespace="web"
    )
    assert [job["namespace"] for job in converted(text)] == ["ml", "web"]
