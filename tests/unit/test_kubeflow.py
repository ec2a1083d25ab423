"""Kubeflow's TFJob and PyTorchJob."""

import json
from typing import Any

import pytest
from tests.driver import Driver
from tests.manifests import bundled, only, refused, warnings

from phalanx.core.environment import GangEnvironment

LABELS = """
            pod-group.scheduling.sigs.k8s.io/name: tf-smoke
            pod-group.scheduling.sigs.k8s.io/min-available: "5"
"""
TF = f"""
apiVersion: "kubeflow.org/v1"
kind: "TFJob"
metadata: {{name: "tf-smoke"}}
spec:
  tfReplicaSpecs:
    PS:
      replicas: 1
      template:
        metadata:
          creationTimestamp: null
          labels:{LABELS}
        spec:
          containers:
          - args: [python, bench.py, --device=cpu]
            image: registry.example/tf-cpu:1
            name: tensorflow
            ports:
            - {{containerPort: 2222, name: tfjob-port}}
            resources: {{limits: {{cpu: '1'}}}}
            workingDir: /opt/bench
          restartPolicy: OnFailure
    Worker:
      replicas: 4
      template:
        metadata:
          labels:{LABELS}
        spec:
          containers:
          - args: [python, bench.py, --device=gpu]
            image: registry.example/tf-gpu:1
            name: tensorflow
            resources: {{limits: {{nvidia.com/gpu: 2}}}}
            workingDir: /opt/bench
          restartPolicy: OnFailure
"""


def test_a_labelled_tensorflow_job_is_one_gang() -> None:
    job = only(TF)
    variables = [role.pop("env") for role in job["roles"].values()]
    assert job == {
        "name": "tf-smoke",
        "restart": "task",
        "complete_when": "worker",
        "roles": {
            "worker": {
                "replicas": 4,
                "image": "registry.example/tf-gpu:1",
                "args": ["python", "bench.py", "--device=gpu"],
                "workdir": "/opt/bench",
                "resources": {"gpu": 2},
            },
            "ps": {
                "image": "registry.example/tf-cpu:1",
                "args": ["python", "bench.py", "--device=cpu"],
                "workdir": "/opt/bench",
                "resources": {"cpu": 1},
            },
        },
    }
    assert [list(env) for env in variables] == [["TF_CONFIG"]] * 2


def test_tf_config_has_the_address_of_every_task() -> None:
    [spec] = bundled(TF, ignore_image=True).jobs
    driver = Driver()
    driver.fleet("a", "b", resources={"gpu": 8000, "cpu": 8000})
    job = driver.submit(spec)
    driver.place(job, "a", "a", "b", "b", "a")
    gang = driver.gang(job)
    world = GangEnvironment(gang, driver.cluster.nodes)
    configs = [json.loads(world.environment(task)["TF_CONFIG"]) for task in gang.members()]
    assert configs[0]["cluster"] == {
        "worker": ["a.example:2222", "a.example:2223", "b.example:2222", "b.example:2223"],
        "ps": ["a.example:2224"],
    }
    assert [one["task"] for one in configs] == [
        *({"type": "worker", "index": n} for n in range(4)),
        {"type": "ps", "index": 0},
    ]


def test_a_chief_is_rank_zero_and_completes_the_job() -> None:
    chief = "Chief: {template: {spec: {containers: [{command: [lead]}]}}}"
    job = only(TF.replace("    PS:", f"    {chief}\n    PS:"))
    assert (next(iter(job["roles"])), job["complete_when"]) == ("chief", "chief")
    assert job["min_available"] == 5
    every = TF.replace("spec:\n  tf", "spec:\n  successPolicy: AllWorkers\n  tf")
    assert only(every.replace("    PS:", f"    {chief}\n    PS:"))["complete_when"] == "worker"


PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: ddp, namespace: ml}
spec:
  runPolicy:
    backoffLimit: 4
    activeDeadlineSeconds: 7200
    cleanPodPolicy: None
    schedulingPolicy: {minAvailable: 2, queue: research, scheduleTimeoutSeconds: 60}
  pytorchReplicaSpecs:
    Worker:
      replicas: 3
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: pytorch, command: [python, ddp.py]}]}}
    Master:
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: pytorch, command: [python, ddp.py]}]}}
"""


def test_the_master_of_pytorch_is_always_rank_zero() -> None:
    assert only(PYTORCH) == {
        "name": "ddp",
        "namespace": "ml",
        "queue": "research",
        "roles": {
            "master": {"command": ["python", "ddp.py"]},
            "worker": {"replicas": 3, "command": ["python", "ddp.py"]},
        },
        "min_available": 2,
        "schedule_timeout": "1m",
        "restart": "task",
        "max_retries": 5,
        "time_limit": "2h",
        "complete_when": "master",
    }
    [note] = warnings(PYTORCH)
    assert note.startswith("document 1: spec.runPolicy.cleanPodPolicy is not used")


def test_a_job_without_policies_restarts_as_kubeflow_does() -> None:
    assert only(PYTORCH.replace("restartPolicy: OnFailure", ""))["restart"] == "task"
    assert only(TF.replace("restartPolicy: OnFailure", ""))["restart"] == "never"


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("    Master:", "    Boss:", "spec.pytorchReplicaSpecs.Boss"),
        ("replicas: 3", "replicas: 0", "spec.pytorchReplicaSpecs.Worker.replicas"),
        ("minAvailable: 2", "minAvailable: 9", "spec.runPolicy.schedulingPolicy.minAvailable"),
        ("  runPolicy:", "  elasticPolicy: {}\n  runPolicy:", "spec.elasticPolicy"),
    ],
)
def test_problems_have_their_path(old: str, new: str, path: str) -> None:
    assert old in PYTORCH
    assert list(refused(PYTORCH.replace(old, new))) == [f"document 1: {path}"]


def test_restarts_by_exit_code_are_refused_or_ignored_with_a_warning() -> None:
    text = PYTORCH.replace("OnFailure", "ExitCode")
    assert len(refused(text)) == 2
    job: dict[str, Any] = only(text, ignore_unsupported=True)
    assert job["restart"] == "task"


def test_replicas_that_restart_differently_are_refused() -> None:
    [path] = refused(PYTORCH.replace("OnFailure", "Never", 1))
    assert path == "document 1: spec.pytorchReplicaSpecs.Worker.restartPolicy"


def test_two_priorities_in_one_job_are_refused() -> None:
    text = PYTORCH.replace("{spec: {containers", "{spec: {priority: 7, containers", 1)
    [message] = refused(text).values()
    assert message.startswith("gives Worker priority 7, but Master has no priority")
