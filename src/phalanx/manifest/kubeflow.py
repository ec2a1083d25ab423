"""The TFJob and PyTorchJob of Kubeflow: replica types become roles, chief or master is rank 0."""

import json
from typing import NamedTuple

from phalanx.core.spec.fields import integer, text
from phalanx.manifest import koordinator
from phalanx.manifest.draft import JobDraft, LocatedValue
from phalanx.manifest.gang_draft import put_pod_fields
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import Pod, pod_of
from phalanx.manifest.pod_member import declaration_of
from phalanx.manifest.problems import ProblemList
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

VERSION = "kubeflow.org/v1"

_RESTARTS = {"Always": "task", "OnFailure": "task", "Never": "never", "ExitCode": "exit-code"}


class Framework(NamedTuple):
    kind: str
    specs: str  #: the key of its replica types
    types: tuple[str, ...]  #: in the order of ranks
    leads: tuple[str, ...]  #: the first of these types that the job has completes it
    restart: str  #: the default restart policy


TENSORFLOW = Framework(
    "TFJob",
    "tfReplicaSpecs",
    ("Chief", "Master", "Worker", "PS", "Evaluator"),
    ("Chief", "Master", "Worker"),
    "never",
)
PYTORCH = Framework("PyTorchJob", "pytorchReplicaSpecs", ("Master", "Worker"), ("Master",), "task")

#: The port on which TensorFlow listens.
_PORT = 2222


def draft_of(document: StrictMapping, options: ReadOptions, framework: Framework) -> JobDraft:
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    draft = JobDraft(document.location)
    metadata.name_job(draft)
    _put_run_policy(draft, spec.mapping("runPolicy"))
    replicas = _replica_types(spec, framework)
    pods = {}
    for kind, mapping in replicas.items():
        pod = pod_of(mapping.mapping("template"), options)
        pod.role.put(
            "replicas", mapping.read("replicas", whole(1)), mapping.location.at("replicas")
        )
        draft.roles[kind.lower()] = pod.role
        pods[kind] = pod
    if framework is TENSORFLOW:
        _put_tf_config(draft, spec)
    _put_completion(draft, spec, framework, list(replicas))
    _put_restart(draft, replicas, framework, pods)
    if pods:
        _put_gang(draft, pods, options, spec.problems)
    return draft


def _replica_types(spec: StrictMapping, framework: Framework) -> dict[str, StrictMapping]:
    parent = spec.mapping(framework.specs)
    known = {name.lower(): name for name in framework.types}
    types: dict[str, StrictMapping] = {}
    for name in parent.unread():
        kind = known.get(name.lower())
        if kind is None:
            choices = ", ".join(framework.types)
            parent.problem(f"is not a replica type of a {framework.kind}; use {choices}", name)
            parent.ignore(name)
        else:
            types[kind] = parent.mapping(name)
    if not types:
        parent.problem("is missing; write at least one replica type, like Worker")
    return {kind: types[kind] for kind in framework.types if kind in types}


def _put_run_policy(draft: JobDraft, policy: StrictMapping) -> None:
    location = policy.location
    draft.put("time_limit", policy.read("activeDeadlineSeconds", whole(1)), location)
    limit = policy.read("backoffLimit", integer(0, 999))
    if limit is not None:
        draft.put("max_retries", limit + 1, location.at("backoffLimit"))
    policy.note(
        "cleanPodPolicy", "is not used: tasks that still run when the job completes are stopped"
    )
    policy.note_retention()
    scheduling = policy.mapping("schedulingPolicy")
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
        draft.put(field, value, scheduling.location.at(key))


def _put_tf_config(draft: JobDraft, spec: StrictMapping) -> None:
    """Set `TF_CONFIG`, with references to the addresses that are known when the gang starts."""
    if spec.take("enableDynamicWorker"):
        spec.problems.add_unsupported(spec.location.at("enableDynamicWorker"))
    hosts = [name for name in draft.roles if name != "evaluator"]
    cluster = ", ".join(f"{json.dumps(name)}: $(addresses.{name}.{_PORT})" for name in hosts)
    for name, role in draft.roles.items():
        task = f'{{"type": {json.dumps(name)}, "index": $(task.index)}}'
        value = f'{{"cluster": {{{cluster}}}, "task": {task}, "environment": "cloud"}}'
        entries = role.fields.get("env")
        if not isinstance(entries, dict) or "TF_CONFIG" not in entries:
            role.put_in("env", "TF_CONFIG", value, spec.location)


def _put_completion(
    draft: JobDraft, spec: StrictMapping, framework: Framework, kinds: list[str]
) -> None:
    policy = spec.read("successPolicy", choice({"": None, "AllWorkers": "Worker"}))
    leads = (policy,) if policy else framework.leads
    lead = next((kind for kind in leads if kind in kinds), None)
    if lead is not None and len(kinds) > 1:
        draft.put("complete_when", lead.lower(), spec.location.at("successPolicy"))


def _put_restart(
    draft: JobDraft, replicas: dict[str, StrictMapping], framework: Framework, pods: dict[str, Pod]
) -> None:
    """Set the restart policy of the replica types, or else of their templates."""
    first: LocatedValue | None = None
    for kind, mapping in replicas.items():
        location = mapping.location.at("restartPolicy")
        policy = mapping.read("restartPolicy", choice(_RESTARTS))
        of_pod = pods[kind].restart
        if policy is None and of_pod is not None:
            policy, location = _RESTARTS[str(of_pod.value)], of_pod.location
        if policy == "exit-code":
            mapping.problems.add_unsupported(location, "is ExitCode, which is not supported")
            policy = "task"
        if policy is None:
            continue
        if first is not None and first.value != policy:
            mapping.problems.add_unsupported(
                location, f"differs from {first.location}, but a job has one restart policy"
            )
        first = first or LocatedValue(policy, location)
    first = first or LocatedValue(framework.restart, draft.location)
    draft.put("restart", first.value, first.location)


def _put_gang(
    draft: JobDraft, pods: dict[str, Pod], options: ReadOptions, problems: ProblemList
) -> None:
    """Set what the labels and annotations of the templates declare, as those of pods do."""
    put_pod_fields(draft, list(pods.items()), problems)
    declarations = [declaration_of(pod) for pod in pods.values()]
    if any(declaration.is_koordinator for declaration in declarations):
        draft.put_all(koordinator.defaults(options, draft.location))
    for declaration in declarations:
        draft.put_all(declaration.fields)
        if declaration.gang is not None:
            draft.put("name", declaration.gang.value, declaration.gang.location)
    minimum = draft.fields.pop("min_available", None)
    if isinstance(minimum, int) and minimum > draft.size:
        problems.add(
            draft.origin("min_available"),
            f"is {minimum} but there are {draft.size} replicas in total; lower it",
        )
    elif isinstance(minimum, int):
        draft.put_minimum(minimum, draft.origin("min_available"))
