"""Volcano's Job, Queue and PodGroup."""

from typing import Any

import pytest
from tests.manifests import bundled, only, pod, refused, warnings

from phalanx.core.spec.native_form import native_queue
from phalanx.manifest.native_file import native_yaml

JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: mnist, namespace: ml}
spec:
  schedulerName: volcano
  queue: research
  maxRetry: 5
  plugins: {env: [], svc: ["--publish-not-ready-addresses"]}
  policies: POLICIES
  tasks:
    - name: ps-a
      replicas: 1
      template: {spec: {containers: [{name: c, command: [serve]}]}}
    - name: worker
      replicas: 3
      template:
        spec:
          restartPolicy: OnFailure
          containers:
            - name: c
              command: [train]
              env: [{name: SHARD, value: "shard-$(VC_TASK_INDEX)"}]
              resources: {limits: {nvidia.com/gpu: 1}}
"""


def job(policies: str = "[]", **words: str) -> str:
    text = JOB.replace("POLICIES", policies)
    for old, new in words.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_tasks_are_roles_and_plugins_add_variables() -> None:
    plugins = {
        "VC_TASK_INDEX": "$(task.index)",
        "VK_TASK_INDEX": "$(task.index)",
        "VC_PS_A_HOSTS": "$(hosts.ps-a)",
        "VC_PS_A_NUM": "$(count.ps-a)",
        "VC_WORKER_HOSTS": "$(hosts.worker)",
        "VC_WORKER_NUM": "$(count.worker)",
    }
    assert only(job()) == {
        "name": "mnist",
        "namespace": "ml",
        "queue": "research",
        "max_retries": 5,
        "restart": "never",
        "roles": {
            "ps-a": {"command": ["serve"], "env": plugins},
            "worker": {
                "replicas": 3,
                "command": ["train"],
                "env": {"SHARD": "shard-$(task.index)"} | plugins,
                "resources": {"gpu": 1},
            },
        },
    }


@pytest.mark.parametrize(
    ("policies", "fields"),
    [
        ("[{event: PodFailed, action: RestartJob}]", {"restart": "gang"}),
        ("[{event: '*', action: RestartJob}]", {"restart": "gang"}),
        ("[{event: PodFailed, action: RestartTask}]", {"restart": "task"}),
        ("[{events: [TaskFailed], action: AbortJob}]", {"restart": "never"}),
        ("[{events: [PodFailed, PodEvicted], action: RestartJob}]", {"restart": "gang"}),
        ("[{event: PodEvicted, action: RestartJob}]", {"restart": "never"}),
        ("[{event: PodEvicted, action: TerminateJob}]", {"restart": "never"}),
        ("[{event: PodPending, timeout: 5m, action: AbortJob}]", {"schedule_timeout": "5m"}),
    ],
)
def test_policies_become_the_restart_policy(policies: str, fields: dict[str, Any]) -> None:
    found = only(job(policies))
    assert {"restart": "gang"} | found | fields == {"restart": "gang"} | found


def test_a_task_that_completes_the_job_becomes_complete_when() -> None:
    policy = "policies: [{event: TaskCompleted, action: CompleteJob}]"
    text = job().replace("replicas: 3", f"replicas: 3\n      {policy}")
    assert only(text)["complete_when"] == "worker"


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ("{exitCode: 137, action: RestartJob}", "spec.policies[0].exitCode"),
        ("{event: TaskCompleted, action: CompleteJob}", "spec.policies[0]"),
        ("{event: PodFailed, action: CompleteJob}", "spec.policies[0]"),
        ("{event: PodFailed, action: RestartJob, timeout: 5s}", "spec.policies[0].timeout"),
    ],
)
def test_unsupported_policies_are_refused_or_ignored_with_a_warning(policy: str, path: str) -> None:
    assert list(refused(job(f"[{policy}]"))) == [f"document 1: {path}"]
    assert len(warnings(job(f"[{policy}]"), ignore_unsupported=True)) == 1


def test_policies_that_contradict_each_other_are_refused() -> None:
    policies = "[{event: PodFailed, action: RestartJob}, {event: PodEvicted, action: AbortJob}]"
    [(path, message)] = refused(job(policies)).items()
    assert path == "document 1: spec.policies[1].action"
    assert "document 1: spec.policies[0].action" in message


@pytest.mark.parametrize(
    ("least", "of_worker", "roles", "over_all"),
    [
        (None, None, [None, None], None),  # all of them
        (4, None, [None, None], None),
        (3, None, [None, None], 3),
        (None, 2, [None, 2], None),
        (3, 2, [None, 2], None),
        (2, 2, [None, None], 2),  # below the sum of the tasks', which it sets aside
        (4, 2, [1, 2], 4),
    ],
)
def test_minimums_of_the_job_and_of_its_tasks(
    least: int | None, of_worker: int | None, roles: list[int | None], over_all: int | None
) -> None:
    text = job()
    if least is not None:
        text = text.replace("maxRetry: 5", f"minAvailable: {least}")
    if of_worker is not None:
        text = text.replace("replicas: 3", f"replicas: 3\n      minAvailable: {of_worker}")
    found = only(text)
    assert [role.get("min") for role in found["roles"].values()] == roles
    assert found.get("min_available") == over_all


def test_the_master_of_pytorch_is_rank_zero() -> None:
    text = job().replace("{env: [],", '{pytorch: ["--master=worker", "--port=23456"],')
    assert list(only(text)["roles"]) == ["worker", "ps-a"]


def test_a_master_that_is_not_a_task_is_refused() -> None:
    text = job().replace("{env: [],", "{pytorch: [],")
    assert refused(text) == {
        "document 1: spec.plugins.pytorch": (
            "names the master master, which is not a task; write the name of a task"
        )
    }


def test_the_priority_class_of_the_job_takes_precedence_over_that_of_its_pods() -> None:
    text = job().replace("maxRetry: 5", "priorityClassName: high")
    assert only(text, priority_classes={"high": 9})["priority_class"] == "high"


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("{env: [],", "{ssh: [],", "spec.plugins.ssh"),
        ("maxRetry: 5", "volumes: [{}]", "spec.volumes"),
        ("maxRetry: 5", "minAvailable: 9", "spec.minAvailable"),
        ("replicas: 3", "replicas: 0", "spec.tasks[1].replicas"),
        ("name: worker", "name: ps-a", "spec.tasks[1].name"),
        ("name: worker", "name: Worker", "spec.tasks[1].name"),
        ("replicas: 3", "replicas: 3\n      dependsOn: {name: [ps-a]}", "spec.tasks[1].dependsOn"),
    ],
)
def test_problems_have_their_path(old: str, new: str, path: str) -> None:
    assert list(refused(job().replace(old, new))) == [f"document 1: {path}"]


QUEUES = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: vision}
spec:
  parent: research
  weight: 3
  priority: 7
  reclaimable: false
  capability: {cpu: 64, nvidia.com/gpu: 16}
  deserved: {nvidia.com/gpu: 8}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: research}
spec: {parent: root}
"""


def test_queues_come_with_their_parents_first() -> None:
    assert [native_queue(queue) for queue in bundled(QUEUES).queues] == [
        {"kind": "Queue", "name": "research"},
        {
            "kind": "Queue",
            "name": "vision",
            "parent": "research",
            "weight": 3,
            "quota": {"gpu": 8},
            "limit": {"cpu": 64, "gpu": 16},
            "priority": 7,
            "reclaimable": False,
        },
    ]


def test_a_printed_queue_reads_back_equal() -> None:
    queues = bundled(QUEUES).queues
    assert bundled(native_yaml([], queues)).queues == queues


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("weight: 3", "weight: -1", "document 1: spec.weight"),
        ("weight: 3", "guarantee: {resource: {cpu: 4}}", "document 1: spec.guarantee"),
        ("weight: 3", "affinity: {}", "document 1: spec.affinity"),
        ("cpu: 64", "cpu: lots", "document 1: spec.capability.cpu"),
        ("parent: root", "parent: vision", "document 1: metadata"),
        ("name: research", "name: vision", "document 1: metadata.name"),
    ],
)
def test_invalid_queues_are_refused(old: str, new: str, path: str) -> None:
    assert path in refused(QUEUES.replace(old, new))


def test_a_pod_group_of_volcano_has_a_queue() -> None:
    text = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 1, queue: research}
"""
    text += pod("a-0", annotations="{scheduling.k8s.io/group-name: g}")
    assert only(text)["queue"] == "research"
    [problem] = refused(text.replace("queue:", "minTaskMember: {a: 1}, queue:"))
    assert problem == "document 1: spec.minTaskMember"
