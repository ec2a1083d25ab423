"""Kubeflow's TFJob and PyTorchJob: replica types are roles; the chief or the master is rank 0."""

import json
from typing import NamedTuple

from phalanx.core.spec.fields import integer, text
from phalanx.manifest.draft import Draft, Said
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import Pod, pod_of
from phalanx.manifest.pod_gangs import claim_of, put_koordinator, put_shared
from phalanx.manifest.problems import ProblemList, ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

VERSION = "kubeflow.org/v1"

_RESTARTS = {"Always": "task", "OnFailure": "task", "Never": "never", "ExitCode": "exit-code"}


class Framework(NamedTuple):
    kind: str
    specs: str  #: the key of its replica types
    types: tuple[str, ...]  #: in the order of ranks
    leads: tuple[str, ...]  #: the first of these that is there completes the job
    restart: str  #: of replicas that do not say


TENSORFLOW = Framework(
    "TFJob",
    "tfReplicaSpecs",
    ("Chief", "Master", "Worker", "PS", "Evaluator"),
    ("Chief", "Master", "Worker"),
    "never",
)
PYTORCH = Framework("PyTorchJob", "pytorchReplicaSpecs", ("Master", "Worker"), ("Master",), "task")

#: Where TensorFlow listens.
_PORT = 2222


def draft_of(document: StrictMapping, settings: ReadOptions, framework: Framework) -> Draft:
    metadata = metadata_of(document)
    document.skip("status")
    spec = document.view("spec")
    draft = Draft(document.where)
    metadata.name_job(draft)
    _put_run_policy(draft, spec.view("runPolicy"))
    replicas = _replica_types(spec, framework)
    pods = {}
    for kind, view in replicas.items():
        pod = pod_of(view.view("template"), settings)
        pod.role.put("replicas", view.read("replicas", whole(1)), view.where.at("replicas"))
        draft.roles[kind.lower()] = pod.role
        pods[kind] = pod
    if framework is TENSORFLOW:
        _put_tf_config(draft, spec)
    _put_completion(draft, spec, framework, list(replicas))
    _put_restart(draft, replicas, framework, pods)
    if pods:
        _put_gang(draft, pods, spec.findings)
    return draft


def _replica_types(spec: StrictMapping, framework: Framework) -> dict[str, StrictMapping]:
    parent = spec.view(framework.specs)
    known = {name.lower(): name for name in framework.types}
    found: dict[str, StrictMapping] = {}
    for name in parent.rest():
        kind = known.get(name.lower())
        if kind is None:
            types = ", ".join(framework.types)
            parent.wrong(f"is no replica type of a {framework.kind}; use {types}", name)
            parent.skip(name)
        else:
            found[kind] = parent.view(name)
    if not found:
        parent.wrong("is missing; write at least one replica type, like Worker")
    return {kind: found[kind] for kind in framework.types if kind in found}


def _put_run_policy(draft: Draft, policy: StrictMapping) -> None:
    where = policy.where
    draft.put("time_limit", policy.read("activeDeadlineSeconds", whole(1)), where)
    limit = policy.read("backoffLimit", integer(0, 999))
    if limit is not None:
        draft.put("max_retries", limit + 1, where.at("backoffLimit"))
    policy.note("cleanPodPolicy", "is not used: what still runs at the end is stopped")
    policy.note_retention()
    scheduling = policy.view("schedulingPolicy")
    for key, field, value in (
        ("minAvailable", "min_available", scheduling.read("minAvailable", whole(1))),
        ("queue", "queue", scheduling.read("queue", text)),
        ("priorityClass", "priority_class", scheduling.read("priorityClass", text)),
        (
            "scheduleTimeoutSeconds",
            "schedule_timeout",
            scheduling.read("scheduleTimeoutSeconds", whole(1)),
        ),
    ):
        draft.put(field, value, scheduling.where.at(key))


def _put_tf_config(draft: Draft, spec: StrictMapping) -> None:
    """`TF_CONFIG` as TensorFlow reads it, with the addresses filled in at the start."""
    if spec.take("enableDynamicWorker"):
        spec.findings.unsupported(spec.where.at("enableDynamicWorker"))
    hosts = [name for name in draft.roles if name != "evaluator"]
    cluster = ", ".join(f"{json.dumps(name)}: $(addresses.{name}.{_PORT})" for name in hosts)
    for name, role in draft.roles.items():
        task = f'{{"type": {json.dumps(name)}, "index": $(task.index)}}'
        value = f'{{"cluster": {{{cluster}}}, "task": {task}, "environment": "cloud"}}'
        entries = role.fields.get("env")
        if not isinstance(entries, dict) or "TF_CONFIG" not in entries:
            role.put_in("env", "TF_CONFIG", value, spec.where)


def _put_completion(
    draft: Draft, spec: StrictMapping, framework: Framework, kinds: list[str]
) -> None:
    policy = spec.read("successPolicy", choice({"": None, "AllWorkers": "Worker"}))
    leads = (policy,) if policy else framework.leads
    lead = next((kind for kind in leads if kind in kinds), None)
    if lead is not None and len(kinds) > 1:
        draft.put("complete_when", lead.lower(), spec.where.at("successPolicy"))


def _put_restart(
    draft: Draft, replicas: dict[str, StrictMapping], framework: Framework, pods: dict[str, Pod]
) -> None:
    """Replica types say it; a template may say it too."""
    first: Said | None = None
    for kind, view in replicas.items():
        where = view.where.at("restartPolicy")
        policy = view.read("restartPolicy", choice(_RESTARTS))
        of_pod = pods[kind].restart
        if policy is None and of_pod is not None:
            policy, where = _RESTARTS[str(of_pod.value)], of_pod.where
        if policy == "exit-code":
            view.findings.unsupported(where, "is ExitCode, which is not supported")
            policy = "task"
        if policy is None:
            continue
        if first is not None and first.value != policy:
            view.findings.unsupported(where, f"differs from {first.where}, and a job has one")
        first = first or Said(policy, where)
    first = first or Said(framework.restart, draft.where)
    draft.put("restart", first.value, first.where)


def _put_gang(draft: Draft, pods: dict[str, Pod], findings: ProblemList) -> None:
    """Labels and annotations of the templates say what they say on pods."""
    put_shared(draft, list(pods.items()), findings)
    for pod in pods.values():
        claim = claim_of(pod)
        put_koordinator(draft, claim)
        draft.put_all(claim.terms)
        if claim.gang is not None:
            draft.put("name", claim.gang.value, claim.gang.where)
    least = draft.fields.pop("min_available", None)
    if isinstance(least, int) and least > draft.size:
        findings.wrong(
            draft.origin("min_available"),
            f"is {least} and there are {draft.size} replicas in all; lower it",
        )
    elif isinstance(least, int):
        draft.put_minimum(least, draft.origin("min_available"))
