"""Fields that are set beside a file, in every dialect."""

from typing import Any

import pytest
from tests.manifests import jobs_of

from phalanx.core.errors import Invalid

NATIVE = b"""
name: train
priority: 1
roles:
  worker: {command: train, replicas: 4, resources: {gpu: 1, cpu: 2}, env: {A: "1", B: "2"}}
"""
TWO_ROLES = b"roles: {ps: {command: serve}, worker: {command: train}}"
VOLCANO = b"""
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: pods}
spec:
  tasks:
    - name: w
      replicas: 2
      template: {spec: {containers: [{name: c, image: busybox, command: [train]}]}}
"""


def test_fields_of_the_job_and_its_role_replace_those_of_the_file() -> None:
    overrides = {"priority": 7, "gang": 2, "resources": {"gpu": 2}, "env": {"B": "3"}}
    [job] = jobs_of(NATIVE, overrides=overrides)
    assert (job.name, job.priority, job.size) == ("train", 7, 2)
    assert job.roles[0].resources == {"gpu": 2000, "cpu": 2000}
    assert job.roles[0].env == {"A": "1", "B": "3"}


def test_jobs_of_other_dialects_are_overridden_too() -> None:
    [job] = jobs_of(VOLCANO, overrides={"gang": 3, "queue": "lab"}, ignore_image=True)
    assert (job.size, job.queue) == (3, "lab")
    [job] = jobs_of(b"command: train\ngang_size: 2\n", overrides={"gang": 3})
    assert job.size == 3


def test_variables_and_the_working_directory_are_for_all_roles() -> None:
    [job] = jobs_of(TWO_ROLES, overrides={"env": {"A": "1"}, "workdir": "/srv"})
    assert [(role.env, role.workdir) for role in job.roles] == [({"A": "1"}, "/srv")] * 2


@pytest.mark.parametrize(
    ("file", "overrides", "problem"),
    [
        (TWO_ROLES, {"gang": 2}, "gang cannot be overridden: the job has the roles ps, worker"),
        (NATIVE, {"gangs": 2}, "gangs is not a field of a job or a role that can be overridden"),
        (NATIVE, {"roles": {}}, "roles is not a field"),
        (NATIVE, {"priority": "high"}, "priority is"),
    ],
)
def test_an_override_that_cannot_be_applied_is_refused(
    file: bytes, overrides: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Invalid) as refused:
        jobs_of(file, overrides=overrides)
    assert problem in str(refused.value)
