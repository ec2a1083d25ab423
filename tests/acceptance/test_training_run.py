"""The job of the batch chapter as it is printed: a signed image, a secret, a user, and policies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from phalanx.secrets.encryption import add_key
from tests.acceptance.fleet import Fleet, files_with
from tests.acceptance.terminal import until
from tests.image_registry import Registry, SigningKey
from tests.integration.agent.registry import Storage, require_podman
from tests.training_run import CRON, IMAGE, JOB

BUCKET = "s3://hidden-bucket-5c1f"
#: Says who it is, and what the value ends in: the value itself is masked.
PROGRAM = 'echo uid $(id -u) bucket $S3_BUCKET; echo "$S3_BUCKET" | tail -c 5'


def trust(key: SigningKey) -> str:
    indented = key.pem.strip().replace("\n", "\n  ")
    return f"kind: TrustPolicy\nname: ml-images\nsigned_by:\n- |\n  {indented}\n"


class Site:
    """A server and a worker with a container runtime, and a registry with the trainer's image."""

    def __init__(self, fleet: Fleet, registry: Registry, storage: Storage, digest: str) -> None:
        self.fleet = fleet
        self.registry = registry
        self.storage = storage
        self.digest = digest

    def apply(self, *files: str) -> None:
        said = self.fleet.terminal.type("policy", "apply", *files)
        assert said.status == 0, said.err

    def events(self, job: str) -> str:
        return self.fleet.terminal.type("events", job).out

    def until_event(self, job: str, words: str) -> None:
        until(lambda: words in self.events(job))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    require_podman()
    monkeypatch.chdir(tmp_path)
    add_key(tmp_path / "keys" / "secret.key")
    state = tmp_path / "state"
    state.mkdir()
    with Registry(tmp_path) as registry:
        storage = Storage(tmp_path / "storage", registry.address, registry.port)
        try:
            entrypoint = f"ENTRYPOINT {json.dumps(['/bin/sh', '-c', PROGRAM])}"
            storage.publish("trainer:v7", "--change", entrypoint)
            digest = _digest(registry, "trainer", "v7")
            for name, value in storage.variables.items():
                monkeypatch.setenv(name, value)
            flags = (
                f"--secret-key-file={tmp_path}/keys/secret.key",
                f"--image-map={IMAGE}={registry.address}/trainer:v7",
            )
            with Fleet(state, *flags) as fleet:
                fleet.terminal.type("queue", "set", "ml-training", "--namespaces", "ml")
                fleet.work("w-1", "--resources=gpu=8,cpu=64,memory=512Gi")
                yield Site(fleet, registry, storage, digest)
        finally:
            storage.remove()


def _digest(registry: Registry, repository: str, tag: str) -> str:
    url = f"http://{registry.address}/v2/{repository}/manifests/{tag}"
    accept = "application/vnd.oci.image.manifest.v1+json"
    accept += ", application/vnd.docker.distribution.manifest.v2+json"
    answer = httpx.get(url, headers={"Accept": accept}, trust_env=False)
    return str(answer.headers["docker-content-digest"])


def test_the_job_runs_as_printed_and_only_as_the_policies_allow(site: Site, tmp_path: Path) -> None:
    at = site.fleet.terminal
    key = SigningKey()
    Path("trust.yaml").write_text(trust(key))
    Path("base.cedar").write_text('@id("all") permit (principal, action, resource);')
    site.apply("base.cedar", "trust.yaml")
    said = at.type("secret", "set", "training-data", "bucket=-", "-n", "ml", stdin=BUCKET)
    assert said.status == 0, said.err

    # The image is not signed: the plan says so, nothing starts, and the reason is an event.
    planned = at.type("plan", "-f", "-", stdin=JOB).out
    assert "the job would fail: trust policy ml-images requires a signature, and image" in planned
    [job] = site.fleet.submit(JOB)
    site.until_event(job, "trust policy ml-images requires a signature")
    at.type("cancel", job)
    site.fleet.ends(job)

    site.registry.sign("trainer", site.digest, key)
    [job] = site.fleet.submit(JOB)
    done = site.fleet.ends(job)
    assert done.counts.succeeded == 8, site.events(job)
    shown: Any = at.type("job", job, "--json").json
    [role] = shown["spec"]["roles"].values()
    assert role["image"] == f"{site.registry.address}/trainer@{site.digest}"
    for rank in range(8):
        logs = at.type("logs", job, "--task", str(rank)).out
        assert logs == "uid 65534 bucket [redacted]\n5c1f\n"
    assert BUCKET not in at.type("job", job, "--json").out + at.type("events", job, "--json").out
    assert files_with(tmp_path, BUCKET) == []

    # An endpoint that is not declared is a warning, and by policy a refusal.
    undeclared = JOB.replace(
        "            variables:\n",
        "            variables:\n              HUB: https://hub.example/x\n",
    )
    said = at.type("plan", "-f", "-", stdin=undeclared)
    assert "https://hub.example" in said.out + said.err

    # Each denial names its policy.
    Path("no.cedar").write_text(
        '@id("no-overrides") forbid (principal, action == Action::"OverrideSecurity", resource);'
        '@id("declared") forbid (principal, action == Action::"AccessExternalEndpoint", resource)'
        " unless { resource.declared };"
    )
    site.apply("base.cedar", "no.cedar")
    said = at.type("submit", "-f", "-", stdin=undeclared)
    assert (
        "policy declared forbids AccessExternalEndpoint on endpoint https://hub.example" in said.err
    )
    said = at.type("submit", "-f", "-", stdin=JOB)
    assert "policy no-overrides forbids OverrideSecurity on the security settings" in said.err


def test_the_cron_form_is_judged_at_each_run(site: Site) -> None:
    at, key = site.fleet.terminal, SigningKey()
    Path("trust.yaml").write_text(trust(key))
    Path("base.cedar").write_text('@id("all") permit (principal, action, resource);')
    site.apply("base.cedar", "trust.yaml")
    at.type("secret", "set", "training-data", "bucket=-", "-n", "ml", stdin=BUCKET)
    planned = at.type("plan", "-f", "-", stdin=CRON).out
    assert "the job would fail: trust policy ml-images requires a signature" in planned
    said = at.type("submit", "-f", "-", stdin=CRON)
    assert (said.status, said.out) == (0, "ml/training-run-42\n"), said.err

    # The image is not signed when the run is due, and then it is.
    run: Any = at.type("cron", "run-now", "ml/training-run-42", "--json").json
    job = run["runs"][0]["job"]
    site.until_event(job, "trust policy ml-images requires a signature")
    at.type("cancel", job)
    site.fleet.ends(job)
    site.registry.sign("trainer", site.digest, key)
    run = at.type("cron", "run-now", "ml/training-run-42", "--json").json
    [job] = [each["job"] for each in run["runs"] if each["job"] != job]
    assert site.fleet.ends(job).counts.succeeded == 8, site.events(job)
    told = site.events(job)
    assert "permitted by all" in told
    assert f"images pinned: {site.registry.address}/trainer@{site.digest}" in told
    assert at.type("logs", job, "--task", "7").out == "uid 65534 bucket [redacted]\n5c1f\n"

    # A policy that forbids it later denies the next run.
    Path("no.cedar").write_text(
        '@id("no-overrides") forbid (principal, action == Action::"OverrideSecurity", resource);'
    )
    site.apply("base.cedar", "no.cedar", "trust.yaml")
    said = at.type("cron", "run-now", "ml/training-run-42")
    assert said.err == (
        "phalanx: cron ml/training-run-42 cannot run now: policy no-overrides forbids"
        " OverrideSecurity on the security settings run_as_user=65534, apparmor=unconfined for"
        " local\n"
    )


def test_all_attempts_of_a_cron_run_have_the_image_that_its_tag_meant_at_the_first(
    site: Site,
) -> None:
    at, image = site.fleet.terminal, f"{site.registry.address}/moving:1"
    first = site.storage.publish("moving:1", show="#!/bin/sh\necho first; exit 1\n")
    cron = {
        "name": "nightly",
        "roles": {"worker": {"image": image, "command": ["show"]}},
        "schedule": {"cron": "0 2 1 1 *"},
        "max_retries": 3,
        "backoff": "1m",
    }
    Path("base.cedar").write_text('@id("all") permit (principal, action, resource);')
    site.apply("base.cedar")
    assert at.type("submit", "-f", "-", stdin=json.dumps(cron)).status == 0
    run: Any = at.type("cron", "run-now", "nightly", "--json").json
    job = run["runs"][0]["job"]
    site.until_event(job, "next attempt in")  # two attempts have failed
    told = site.events(job)
    assert "permitted by all" in told
    assert f"images pinned: {site.registry.address}/moving@{first}" in told
    shown: Any = at.type("job", job, "--json").json
    assert shown["spec"]["roles"]["worker"]["image"].endswith(first)
    at.type("cancel", job)
    site.fleet.ends(job)
