"""Policies decide about every request, name themselves, and equal the built-in rules at first."""

import re
from datetime import UTC
from typing import Any

import pytest
from tests.driver import Driver
from tests.training_run import CRON

from phalanx.core.errors import Invalid
from phalanx.core.events import CancelRequested, CronSet, QueueSet
from phalanx.core.model import Queue
from phalanx.core.records import CronDenied
from phalanx.core.spec.validation import job_spec
from phalanx.engine.cron_lookups import CronLookups
from phalanx.engine.object_registry import ObjectRegistry
from phalanx.identity.principal import Principal
from phalanx.identity.token_registry import TokenRegistry
from phalanx.manifest import bundle
from phalanx.policy import policy_sets
from phalanx.policy.access_requests import (
    request_on_job,
    request_on_secret,
    request_to_manage,
    requests_of_job,
)
from phalanx.policy.authorizer import KIND, Authorizer
from phalanx.policy.cron_admission import CronAdmission
from phalanx.policy.policy_sets import CedarMissing, parse
from phalanx.policy.policy_tests import read_tests, run_test
from phalanx.policy.schema import SCHEMA, STARTER
from phalanx.policy.trust import PolicyDenied
from phalanx.registry.image_reference import ImageReference
from phalanx.store.memory import MemoryStore
from phalanx.store.protocol import ClusterObject, ObjectKey

ADA = Principal("ada", "user", ("ml",))
ROOT = Principal("root", "admin")
QUEUES = {"train": Queue("train", namespaces=("ml",)), "default": Queue("default")}


def job(**fields: Any) -> Any:
    role = {"command": "true", "resources": {"gpu": 1}, "replicas": 4} | fields.pop("role", {})
    return job_spec({"namespace": "ml", "queue": "train", "roles": {"worker": role}} | fields)


#: A job that asks for every action on submissions.
EVERYTHING = job(
    name="nightly",
    role={
        "image": "registry.example/train:1",
        "env": {"A": "${resources.hub.token}", "B": "https://hub.example/x"},
        "security": {"privileged": True},
    },
    external_services={"s3": "https://s3.example"},
    schedule={"cron": "0 2 * * *"},
)


async def with_policies(text: str, **labels: dict[str, str]) -> Authorizer:
    registry = ObjectRegistry(MemoryStore(clock=lambda: 0))
    authorizer = Authorizer(registry, labels)
    await registry.change([ClusterObject(KIND, "", "a.cedar", text, 1)])
    return authorizer


def refusal(authorizer: Authorizer, principal: Principal, spec: Any) -> str:
    with pytest.raises(PolicyDenied) as denied:
        authorizer.check(requests_of_job(principal, spec, QUEUES))
    return str(denied.value)


async def test_the_starter_set_equals_the_built_in_rules() -> None:
    authorizer, everything = await with_policies(STARTER), EVERYTHING
    permitted = authorizer.check(requests_of_job(ADA, everything, QUEUES))
    assert permitted[:2] == ("users-in-their-namespaces", "queues-admit-their-namespaces")
    assert authorizer.check(requests_of_job(ROOT, everything, QUEUES))[0] == "admins"
    assert authorizer.check([request_to_manage(ROOT, "worker", "w-1")]) == ("admins",)
    web = Principal("web", "user", ("web",))
    why = "no policy permits SubmitJob on namespace ml for web"
    assert refusal(authorizer, web, everything) == why
    with pytest.raises(PolicyDenied, match="no policy permits ManageQueue on queue train for ada"):
        authorizer.check([request_to_manage(ADA, "queue", "train")])
    why = "no policy permits UseQueue on queue train for web"
    assert refusal(authorizer, web, job(namespace="web")) == why


@pytest.mark.parametrize("principal", [ADA, ROOT, Principal("web", "user", ("web",))])
async def test_the_starter_set_decides_about_changes_as_the_built_in_rules_do(
    principal: Principal,
) -> None:
    authorizer = await with_policies(STARTER)
    spec, sees = job(), principal.may_see("ml")
    is_admin = principal.role == "admin"
    answers = {
        request_on_secret(principal, "ml", "hub"): sees,
        request_to_manage(principal, "queue", "train"): is_admin,
        request_to_manage(principal, "worker", "w-1"): is_admin,
    }
    for action in ("CancelJob", "ManageJob", "ManageCron", "ExecTask"):
        answers[request_on_job(principal, action, spec, "someone")] = sees
    decided = {request: authorizer.decide(request).is_allowed for request in answers}
    assert decided == answers
    asked = {request.action for request in answers}
    asked |= {each.action for each in requests_of_job(principal, EVERYTHING, QUEUES)}
    assert asked == set(re.findall(r"\b[A-Z]\w+(?=[^;{]* appliesTo)", SCHEMA)), "all actions"


IMAGE = "registry.example/train:1"
LABELLED = 'resource.namespace.hasTag("tier") && resource.namespace.getTag("tier") == "gold"'


@pytest.mark.parametrize(
    ("action", "condition", "fields", "what"),
    [
        ("SubmitJob", "when { resource.gpus > 2 }", {}, "namespace ml"),
        ("SubmitJob", "when { resource.priority > 9 }", {"priority": 10}, "namespace ml"),
        ("SubmitJob", f"when {{ {LABELLED} }}", {}, "namespace ml"),
        ("UseQueue", 'when { resource.name == "train" }', {}, "queue train"),
        (
            "DeployImage",
            "unless { resource has digest }",
            {"role": {"image": IMAGE}},
            f"image {IMAGE}",
        ),
        (
            "AccessSecret",
            'when { resource.name == "hub" }',
            {"role": {"env": {"A": "${resources.hub.token}"}}},
            "secret ml/hub",
        ),
        (
            "AccessSecret",
            'when { resource.name == "prod" }',
            {"role": {"image": IMAGE, "pull_secrets": ["prod"]}},
            "secret ml/prod",
        ),
        (
            "AccessExternalEndpoint",
            "unless { resource.declared }",
            {"role": {"env": {"A": "https://evil.example/x"}}},
            "endpoint https://evil.example (not declared by the job)",
        ),
        (
            "OverrideSecurity",
            'when { context.settings.contains("run_as_user=alice") }',
            {"run_as_user": "alice"},
            "the security settings run_as_user=alice",
        ),
    ],
)
async def test_a_refusal_names_the_action_the_object_and_the_policy(
    action: str, condition: str, fields: dict[str, Any], what: str
) -> None:
    forbid = (
        f'@id("strict") forbid (principal, action == Action::"{action}", resource) {condition};'
    )
    authorizer = await with_policies(STARTER + forbid, ml={"tier": "gold"})
    refused = refusal(authorizer, ADA, job(**fields))
    assert refused == f"policy strict forbids {action} on {what} for ada"


async def test_decisions_are_kept_until_the_policies_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = ObjectRegistry(MemoryStore(clock=lambda: 0))
    authorizer = Authorizer(registry)
    assert authorizer.check(requests_of_job(ADA, job(), QUEUES)) == ()
    await registry.change([ClusterObject(KIND, "", "a", STARTER, 1)])
    before = authorizer.check(requests_of_job(ADA, job(name="a"), QUEUES))
    with monkeypatch.context() as patched:
        patched.setattr("phalanx.policy.authorizer.evaluate", None)  # it must not be called
        assert authorizer.check(requests_of_job(ADA, job(name="b"), QUEUES)) == before
    forbid = '@id("no") forbid (principal, action, resource);'
    await registry.change([ClusterObject(KIND, "", "b", forbid, 1)])
    assert refusal(authorizer, ADA, job()).startswith("policy no forbids SubmitJob")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("permit (principal", "f.cedar: is not Cedar"),
        ("permit (principal, action, resource);", 'write @id("name") before it'),
        ('@id("a") permit (principal, action, resource);' * 2, "has the @id a of a policy before"),
        (
            """@id("a") permit (principal, action == Action::"SubmitJob", resource)
            when { resource.gpu > 1 };""",
            "f.cedar: policy a: attribute `gpu` on entity type `Job` not found",
        ),
    ],
)
def test_policies_are_checked_before_they_are_applied(text: str, problem: str) -> None:
    with pytest.raises(Invalid, match=r"f\.cedar") as refused:
        parse({"f.cedar": text})
    assert problem in str(refused.value)


async def test_without_cedar_stored_policies_refuse_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> Any:
        raise CedarMissing

    monkeypatch.setattr(policy_sets, "cedar", missing)
    authorizer = await with_policies(STARTER)
    assert "pip install 'phalanx[policy]'" in refusal(authorizer, ROOT, job())


def test_tests_of_policies_compare_the_answer_and_the_policy() -> None:
    parsed = parse({"a": STARTER})
    tests = read_tests(
        {
            "tests": [
                {
                    "name": "own",
                    "principal": {"name": "ada", "namespaces": ["ml"]},
                    "job": {"command": "true", "namespace": "ml"},
                    "expect": "allow",
                },
                {
                    "name": "other",
                    "principal": {"name": "ada", "namespaces": ["ml"]},
                    "job": {"command": "true", "namespace": "web"},
                    "expect": "allow",
                },
                {
                    "name": "queue",
                    "principal": {"name": "r", "role": "admin"},
                    "policy": "other",
                    "manage_queue": "q",
                    "expect": "allow",
                },
            ]
        }
    )
    outcomes = [run_test(test, parsed, QUEUES, {}) for test in tests]
    assert [(each.passed, each.answer) for each in outcomes] == [
        (True, "allow"),
        (False, "deny"),
        (False, "allow"),
    ]
    with pytest.raises(Invalid, match=r"tests\[0\]"):
        read_tests({"tests": [{"name": "a", "principal": {"name": "b"}, "expect": "perhaps"}]})


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("busybox", ("docker.io", "library/busybox", "latest", None)),
        ("localhost:5000/a/b:1.2", ("localhost:5000", "a/b", "1.2", None)),
        ("registry.example/t@sha256:def456", ("registry.example", "t", None, "sha256:def456")),
        ("team/train:v1@sha256:ab", ("docker.io", "team/train", "v1", "sha256:ab")),
    ],
)
def test_an_image_reference_has_the_parts_that_docker_reads(
    written: str, parts: tuple[str | None, ...]
) -> None:
    assert tuple(ImageReference.parse(written)) == parts


async def test_each_run_of_a_cron_is_judged_by_the_policies_of_that_day() -> None:
    registry = ObjectRegistry(MemoryStore(clock=lambda: 0))
    tokens = TokenRegistry(MemoryStore(clock=lambda: 0), open_on_loopback=True)
    admission = CronAdmission(tokens, Authorizer(registry))
    cluster = Driver()
    cluster.lookups = CronLookups(zone=lambda _: UTC, verdict=admission.verdict)
    nightly = job(queue="default", name="nightly", schedule={"cron": "0 2 * * *"})
    cluster.apply(CronSet(nightly, "local"))
    cluster.advance(24 * 3600)
    forbid = '@id("no-nights") forbid (principal, action == Action::"SubmitJob", resource);'
    await registry.change([ClusterObject(KIND, "", "a", STARTER + forbid, 1)])
    for run in list(cluster.jobs):
        cluster.apply(CancelRequested(run))
    cluster.advance(24 * 3600)
    [denied] = [record for record in cluster.records if isinstance(record, CronDenied)]
    assert denied.why == "policy no-nights forbids SubmitJob on namespace ml for local"
    assert denied.policies == ("no-nights",)
    await registry.change((), [ObjectKey(KIND, "", "a")])
    runs = len(cluster.jobs)
    cluster.advance(24 * 3600)
    assert len(cluster.jobs) == runs + 1


async def test_the_printed_cron_is_denied_by_the_policy_of_the_night() -> None:
    registry = ObjectRegistry(MemoryStore(clock=lambda: 0))
    tokens = TokenRegistry(MemoryStore(clock=lambda: 0), open_on_loopback=True)
    cluster = Driver()
    verdict = CronAdmission(tokens, Authorizer(registry)).verdict
    cluster.lookups = CronLookups(zone=lambda _: UTC, verdict=verdict)
    cluster.apply(QueueSet(Queue("ml-training")))
    [cron] = bundle.read(CRON.encode()).jobs
    cluster.apply(CronSet(cron, "local"))
    forbid = (
        '@id("no-overrides") forbid (principal, action == Action::"OverrideSecurity", resource);'
    )
    await registry.change([ClusterObject(KIND, "", "a", STARTER + forbid, 1)])
    cluster.advance(24 * 3600)
    assert not cluster.jobs
    [denied] = [record for record in cluster.records if isinstance(record, CronDenied)]
    assert denied.policies == ("no-overrides",)
    assert denied.why == (
        "policy no-overrides forbids OverrideSecurity on the security settings run_as_user=65534,"
        " apparmor=unconfined for local"
    )
    await registry.change((), [ObjectKey(KIND, "", "a")])
    cluster.advance(24 * 3600)
    [run] = cluster.jobs.values()
    assert (run.spec.name or "").startswith("training-run-42-")


def test_an_array_is_judged_once_with_the_gpus_and_tasks_of_all_elements() -> None:
    [submit, *_] = requests_of_job(ADA, job(array="0-9%1"), QUEUES)
    attributes = dict(submit.resource.attributes)
    assert (submit.action, attributes["gpus"], attributes["tasks"]) == ("SubmitJob", 40, 40)
