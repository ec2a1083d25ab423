"""LatticeJobs."""

import pytest
from tests.manifests import only, refused, warnings

JOB = """
apiVersion: VERSION
kind: LatticeJob
metadata: {name: training-run, namespace: ml}
spec:
  queue: ml-training
  priorityClassName: high
  minAvailable: 8
  tasks:
    workers:
      replicas: 8
      restartPolicy: OnFailure
      workload:
        containers:
          trainer:
            image: registry.example/trainer@sha256:def456
            command: [train]
            args: [--fast]
            variables: {MODE: full}
            resources:
              requests: {cpu: "4", memory: 32Gi, nvidia.com/gpu: "1"}
              limits: {cpu: "8"}
  defaults: {variables: {MODE: half, REGION: eu}}
"""
CLASSES = {"high": 100}


def job(**words: str) -> str:
    text = JOB
    for old, new in words.items():
        assert old in text
        text = text.replace(old, new)
    return text.replace("VERSION", "lattice.dev/v1alpha1")


@pytest.mark.parametrize("version", ["lattice.dev/v1alpha1", "v1alpha1"])
def test_tasks_are_roles(version: str) -> None:
    assert only(JOB.replace("VERSION", version), priority_classes=CLASSES) == {
        "name": "training-run",
        "namespace": "ml",
        "queue": "ml-training",
        "priority_class": "high",
        "roles": {
            "workers": {
                "replicas": 8,
                "image": "registry.example/trainer@sha256:def456",
                "command": ["train", "--fast"],
                "env": {"MODE": "full", "REGION": "eu"},
                "resources": {"cpu": 4, "memory": "32Gi", "gpu": 1},
            }
        },
    }


def test_a_restart_policy_and_a_minimum_are_translated() -> None:
    text = job(OnFailure="Never").replace("minAvailable: 8", "minAvailable: 6")
    found = only(text, priority_classes=CLASSES)
    assert (found["restart"], found["min_available"]) == ("never", 6)


SCHEDULED = """
  schedule: "0 2 * * *"
  timeZone: Europe/Zurich
  concurrencyPolicy: Replace
  successfulJobsHistoryLimit: 5
  failedJobsHistoryLimit: 2
"""


def scheduled(old: str = "", new: str = "") -> str:
    assert old in SCHEDULED
    return job() + SCHEDULED.replace(old, new)


def test_a_schedule_is_translated() -> None:
    assert only(scheduled(), priority_classes=CLASSES)["schedule"] == {
        "cron": "0 2 * * *",
        "timezone": "Europe/Zurich",
        "concurrency": "replace",
        "keep": {"done": 5, "failed": 2},
    }


@pytest.mark.parametrize(
    ("old", "new", "path", "said"),
    [
        ("0 2 * * *", "0 0 2 * * *", "schedule", "fields is 6; write five"),
        ("Europe/Zurich", "Mars/Olympus", "timeZone", "not a known time zone; write one like"),
        ("Replace", "Sometimes", "concurrencyPolicy", "write Allow or Forbid or Replace"),
        ("Limit: 5", "Limit: -1", "successfulJobsHistoryLimit", "at least 0"),
        ('schedule: "0 2 * * *"', "", "timeZone", "has no effect without a schedule"),
    ],
)
def test_an_invalid_schedule_is_refused(old: str, new: str, path: str, said: str) -> None:
    problems = refused(
        scheduled(old, new), priority_classes=CLASSES, timezones={"UTC", "Europe/Zurich"}
    )
    assert said in problems[f"document 1: spec.{path}"]


DECLARED = """
  resources:
    training-data: {type: secret, params: {keys: [bucket]}}
    s3: {type: external-service, direction: outbound, params: {endpoints: {s3: https://s3}}}
"""


def test_secrets_stay_references_and_services_are_not_enforced() -> None:
    text = job(full='"${resources.training-data.bucket}"') + DECLARED
    settings = {"priority_classes": CLASSES}
    assert only(text, **settings)["external_services"] == {"s3.s3": "https://s3"}
    role = only(text, **settings)["roles"]["workers"]
    assert role["env"]["MODE"] == "${resources.training-data.bucket}"
    note = "is declared, not enforced: tasks use the network of their worker"
    assert warnings(text, **settings) == [f"document 1: spec.resources.s3 {note}"]


def test_a_secret_that_is_not_declared_is_refused() -> None:
    text = job(full='"${resources.training-data.token}"') + DECLARED
    [message] = refused(text, priority_classes=CLASSES, ignore_unsupported=True).values()
    assert (
        message
        == "refers to ${resources.training-data.token}, which is not declared; add it to resources"
    )


def test_security_settings_become_those_of_the_role() -> None:
    text = job().replace(
        "command: [train]",
        "command: [train]\n            security: {runAsUser: 65534, apparmorProfile: Unconfined,"
        " capabilities: [NET_ADMIN], privileged: false, readOnlyRootFilesystem: true}",
    )
    assert only(text, priority_classes=CLASSES)["roles"]["workers"]["security"] == {
        "run_as_user": 65534,
        "capabilities": {"add": ["NET_ADMIN"]},
        "apparmor": "unconfined",
        "read_only_root": True,
    }


def test_an_unknown_security_setting_is_refused_by_its_name() -> None:
    text = job().replace("command: [train]", "command: [train]\n            security: {user: 0}")
    [path] = refused(text, priority_classes=CLASSES)
    assert path == "document 1: spec.tasks.workers.workload.containers.trainer.security.user"


def test_a_minimum_above_the_replicas_is_refused() -> None:
    text = job().replace("minAvailable: 8", "minAvailable: 9")
    assert list(refused(text, priority_classes=CLASSES)) == ["document 1: spec.minAvailable"]
