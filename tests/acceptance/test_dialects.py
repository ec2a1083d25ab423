"""Documents from the pages of the dialects: the jobs that they become, and that their processes
start together or not at all."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.manifest import documents
from phalanx.secrets.encryption import add_key
from tests.acceptance.fleet import Fleet, states
from tests.acceptance.terminal import Terminal
from tests.manifests import pod
from tests.training_run import CRON, JOB

NOWHERE = Terminal("http://127.0.0.1:9")

#: A parameter server and four workers of two GPUs each, of which five are the minimum.
TENSORFLOW = """
apiVersion: "kubeflow.org/v1"
kind: "TFJob"
metadata:
  name: "smoke-gpu"
spec:
  tfReplicaSpecs:
    PS:
      replicas: 1
      template:
        metadata:
          creationTimestamp: null
          labels:
            pod-group.scheduling.sigs.k8s.io/name: smoke-gpu
            pod-group.scheduling.sigs.k8s.io/min-available: "5"
        spec:
          containers:
          - args: PROGRAM
            image: registry.example/benchmarks-cpu:v1
            name: tensorflow
            ports:
            - containerPort: 2222
              name: tfjob-port
            resources:
              limits:
                cpu: '1'
            workingDir: /
          restartPolicy: OnFailure
    Worker:
      replicas: 4
      template:
        metadata:
          creationTimestamp: null
          labels:
            pod-group.scheduling.sigs.k8s.io/name: smoke-gpu
            pod-group.scheduling.sigs.k8s.io/min-available: "5"
        spec:
          containers:
          - args: PROGRAM
            image: registry.example/benchmarks-gpu:v1
            name: tensorflow
            ports:
            - containerPort: 2222
              name: tfjob-port
            resources:
              limits:
                nvidia.com/gpu: 2
            workingDir: /
          restartPolicy: OnFailure
"""

#: The job of the batch chapter with a command, so that it runs without its image.
LATTICE = JOB.replace("          trainer:\n", "          trainer:\n            command: PROGRAM\n")

PODGROUP = """
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
  minMember: 5
  minResources:
    cpu: "5"
    memory: "2048Mi"
  scheduleTimeoutSeconds: 600
"""


def members(gang: str, namespace: str, program: object = ("train",)) -> str:
    """Five pods of Koordinator's gang, which starts with one of another namespace."""
    annotations = f"""{{
      gang.scheduling.koordinator.sh/name: {gang},
      gang.scheduling.koordinator.sh/waiting-time: 3600s ,
      gang.scheduling.koordinator.sh/min-available: 5,
      gang.scheduling.koordinator.sh/total-number: 5,
      gang.scheduling.koordinator.sh/mode: Strict,
      gang.scheduling.koordinator.sh/groups: ["namespaceA/gang-a", "namespaceB/gang-b"]}}"""
    pods = (pod(f"{gang}-{n}", annotations=annotations, namespace=namespace) for n in range(5))
    return "".join(pods).replace("[train]", json.dumps(program))


def converted(text: str, *flags: str) -> list[Any]:
    said = NOWHERE.type("convert", "-f", "-", *flags, stdin=text.replace("PROGRAM", "[train]"))
    assert said.status == 0, said.err
    return documents.read(said.out.encode())


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    add_key(tmp_path / "secret.key")
    with Fleet(tmp_path, f"--secret-key-file={tmp_path / 'secret.key'}") as running:
        yield running


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """With two workers, for one that fails three jobs is given no more."""
    with Fleet(tmp_path_factory.mktemp("busy")) as running:
        for name in ("a", "b"):
            running.work(name, "--resources=cpu=8,memory=8Gi")
        yield running


# What they become


def test_a_lattice_job_is_eight_workers_of_its_queue() -> None:
    [job] = converted(LATTICE, "--ignore-unsupported")
    [(name, role)] = job["roles"].items()
    assert (job["name"], job["namespace"], job["queue"]) == ("training-run-42", "ml", "ml-training")
    assert (name, role["replicas"], "min" in role) == ("workers", 8, False)
    assert role["resources"] == {"cpu": 4, "memory": "32Gi", "gpu": 1}
    assert job.get("restart", "gang") == "gang"


def test_a_lattice_job_with_a_schedule_is_a_cron() -> None:
    [job] = converted(CRON, "--ignore-unsupported")
    assert job["schedule"] == {"cron": "0 2 * * *"}, "the rest is what we have by ourselves"


def test_secrets_and_security_of_a_lattice_job_are_kept() -> None:
    [job] = converted(LATTICE)
    role = job["roles"]["workers"]
    assert role["env"] == {"S3_BUCKET": "${resources.training-data.bucket}"}
    assert role["security"] == {"run_as_user": 65534, "apparmor": "unconfined"}
    assert role["pull_secrets"] == ["default"]


def test_two_gangs_of_koordinator_are_two_jobs_of_one_group() -> None:
    first, second = converted(members("gang-a", "namespaceA") + members("gang-b", "namespaceB"))
    assert [job["namespace"] for job in (first, second)] == ["namespacea", "namespaceb"]
    for job in (first, second):
        assert job["group"] == ["namespacea/gang-a", "namespaceb/gang-b"]
        assert (job["match"], job["restart"]) == ("once-satisfied", "task")
        assert (job["gather_timeout"], job.get("mode", "strict")) == ("1h", "strict")
        assert [role["replicas"] for role in job["roles"].values()] == [5]


def test_annotations_of_a_koordinator_pod_group_apply_to_its_pods() -> None:
    labels = "{pod-group.scheduling.sigs.k8s.io: gang-a}"
    asks = "[train], resources: {requests: {cpu: 1, memory: 512Mi}}"
    pods = "".join(pod(f"a-{n}", labels=labels, namespace="namespaceA") for n in range(5))
    [job] = converted(PODGROUP + pods.replace("[train]", asks))
    assert (job["namespace"], job["gather_timeout"]) == ("namespacea", "10m")
    assert job["group"] == ["namespacea/gang-a", "namespaceb/gang-b"]


# What they do


def test_a_tensorflow_job_is_pending_as_a_whole_until_every_gpu_is_there(fleet: Fleet) -> None:
    fleet.work("a", "--resources=gpu=4,cpu=4")
    text = TENSORFLOW.replace("PROGRAM", json.dumps(fleet.program))
    [job] = fleet.submit(text, "--ignore-image")
    waiting = fleet.waits(job, "NeverFits")
    assert waiting.size == 5
    assert "the gang needs 8 GPUs" in fleet.terminal.type("why", "smoke-gpu").out
    fleet.work("b", "--resources=gpu=4,cpu=4")
    running = fleet.runs(job)
    assert {task.attempt for task in running.tasks} == {1}, "all in one reservation"
    assert sorted(len(task.devices) for task in running.tasks) == [0, 2, 2, 2, 2]
    fleet.end(job)
    assert fleet.ends(job).phase == "done"


def test_two_roles_of_a_group_start_only_together(fleet: Fleet) -> None:
    fleet.work("a", "--slots=8")
    [first] = fleet.submit(members("gang-a", "namespaceA", fleet.program))
    fleet.waits(first, "WaitingForGroup")
    [second] = fleet.submit(members("gang-b", "namespaceB", fleet.program))
    for job in (first, second):
        fleet.until(job, lambda seen: seen.reason and seen.reason["type"] != "WaitingForGroup")
    assert all(states(fleet.client.get(job)) == {"pending"} for job in (first, second))
    fleet.work("b", "--slots=2")
    assert [fleet.runs(job).attempt for job in (first, second)] == [1, 1]
    fleet.end(first, second)
    assert [fleet.ends(job).phase for job in (first, second)] == ["done", "done"]


def test_a_lattice_job_starts_eight_workers_or_none(fleet: Fleet) -> None:
    fleet.terminal.type("queue", "set", "ml-training", "--weight", "2")
    fleet.terminal.type("secret", "set", "training-data", "bucket=models", "--namespace", "ml")
    fleet.work("a", "--resources=gpu=7,cpu=64,memory=512Gi")
    text = LATTICE.replace("PROGRAM", json.dumps(fleet.program))
    [job] = fleet.submit(text, "--ignore-image", "--ignore-unsupported")
    fleet.waits(job, "NeverFits")
    fleet.work("b", "--resources=gpu=1,cpu=8,memory=64Gi")
    running = fleet.runs(job)
    assert [len(task.devices) for task in running.tasks] == [1] * 8
    fleet.end(job)
    assert fleet.ends(job).counts.succeeded == 8


GANG = "pod-group.scheduling.sigs.k8s.io"
CRD = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: nginx
spec:
  scheduleTimeoutSeconds: 10
  minMember: 3
"""
BASIC = """
apiVersion: v1alpha1
kind: PodGroup
metadata:
  creationTimestamp: "2022-07-11T18:26:33Z"
  name: gang-a
  namespace: default
spec:
  minMember: 5
  minResources:
    cpu: "5"
    memory: "2048Mi"
  scheduleTimeoutSeconds: 600
"""


def pods(count: int, asks: str = "{}", **meta: str) -> str:
    text = "".join(pod(f"p-{n}", **meta) for n in range(count))
    return text.replace("[train]", f"[train], resources: {{requests: {asks}}}")


#: How a gang is declared, and how many of it there are.
WAYS = {
    "labels": pods(3, labels=f'{{{GANG}/name: tf-smoke, {GANG}/min-available: "3"}}'),
    "a PodGroup": CRD + pods(3, labels=f"{{{GANG}/name: nginx}}"),
    "annotations": pods(
        2,
        annotations="{gang.scheduling.koordinator.sh/name: gang-example,"
        ' gang.scheduling.koordinator.sh/min-available: "2"}',
    ),
    "a PodGroup that counts resources": BASIC
    + pods(5, "{cpu: 1, memory: 410Mi}", labels=f"{{{GANG}: gang-a}}"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gang_declared_in_any_dialect_starts_together(busy: Fleet, way: str) -> None:
    [job] = busy.submit(WAYS[way].replace("[train]", json.dumps(busy.program)))
    running = busy.runs(job)
    assert running.size == WAYS[way].count("kind: Pod\n")
    assert {task.attempt for task in running.tasks} == {1}
    busy.end(job)
    assert busy.ends(job).phase == "done"


# One member dies


def matched(name: str, policy: str, program: object) -> str:
    labels = f'{{{GANG}/name: {name}, {GANG}/min-available: "3", {GANG}/match-policy: {policy}}}'
    pods = "".join(pod(f"{name}-{n}", labels=labels) for n in range(3))
    return pods.replace("[train]", json.dumps(program))


def epochs(fleet: Fleet, job: str) -> list[int]:
    return [task.attempt for task in fleet.runs(job).tasks]


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        ("only-waiting", [2, 2, 2]),
        ("waiting-and-running", [1, 2, 1]),
        ("waiting-running-succeed", [1, 2, 1]),
        ("once-satisfied", [1, 2, 1]),
    ],
)
def test_which_tasks_restart_when_a_member_fails(
    busy: Fleet, policy: str, after: list[int]
) -> None:
    [job] = busy.submit(matched(policy, policy, busy.program))
    assert epochs(busy, job) == [1, 1, 1]
    busy.fail(f"{job}.1")
    busy.until(job, lambda seen: seen.attempt == 2)
    assert epochs(busy, job) == after
    story = busy.terminal.type("events", job).out
    assert ("stopping all tasks" in story) == (policy == "only-waiting")
    assert busy.client.get(job).failures == 1
    busy.end(job)
    assert busy.ends(job).phase == "done"


def test_a_member_that_is_done_counts_where_the_policy_says_so(busy: Fleet) -> None:
    [job] = busy.submit(matched("one-done", "waiting-running-succeed", busy.program))
    busy.runs(job)
    busy.end(f"{job}.0")
    busy.until(job, lambda seen: seen.counts.succeeded == 1)
    busy.fail(f"{job}.1")
    seen = busy.until(job, lambda seen: seen.attempt == 2 and seen.counts.running == 2)
    assert [(task.state, task.attempt) for task in seen.tasks] == [
        ("done", 1),
        ("running", 2),
        ("running", 1),
    ]
    busy.end(job)
    assert busy.ends(job).phase == "done"


def test_a_member_joins_a_gang_that_runs(busy: Fleet) -> None:
    prefix = "gang.scheduling.koordinator.sh"
    words = f'{{{prefix}/name: joined, {prefix}/min-available: "2", {prefix}/total-number: "2"}}'
    text = [
        pod(f"joined-{n}", annotations=words).replace("[train]", json.dumps(busy.program))
        for n in range(3)
    ]
    [job] = busy.submit(text[0] + text[1])
    busy.runs(job)
    assert busy.submit(text[2]) == [job]
    seen = busy.until(job, lambda seen: seen.counts.running == 3)
    assert [task.attempt for task in seen.tasks] == [1, 1, 2]
    busy.end(job)
    assert busy.ends(job).phase == "done"
