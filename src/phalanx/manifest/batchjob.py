"""Kubernetes' own Job (`batch/v1`): as many pods of one template as it has at a time."""

from phalanx.core.spec.fields import boolean
from phalanx.manifest.draft import Said
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import pod_of
from phalanx.manifest.pod_gangs import PodMember
from phalanx.manifest.problems import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

#: Kubernetes' own default.
_BACKOFF_LIMIT = 6


def member_of(document: StrictMapping, settings: ReadOptions) -> PodMember:
    metadata = metadata_of(document)
    document.skip("status")
    spec = document.view("spec")
    spec.skip("manualSelector", "selector", "podReplacementPolicy")
    _check_runs(spec)
    is_indexed = spec.read("completionMode", choice({"Indexed": True, "NonIndexed": False}))
    template = spec.view("template")
    pod = pod_of(template, settings, {"JOB_COMPLETION_INDEX": "$(task.index)"})
    if is_indexed:
        where = spec.where.at("completionMode")
        pod.role.put_in("env", "JOB_COMPLETION_INDEX", "$(task.index)", where)
    limit = spec.read("backoffLimit", whole(0))
    failures = (_BACKOFF_LIMIT if limit is None else limit) + 1
    fields = {
        "restart": Said("task", spec.where),
        "max_retries": Said(failures, spec.where.at("backoffLimit")),
    }
    deadline = spec.read("activeDeadlineSeconds", whole(1))
    if deadline is not None:
        fields["time_limit"] = Said(deadline, spec.where.at("activeDeadlineSeconds"))
    spec.note_retention()
    own = pod.metadata._replace(
        name=metadata.name, namespace=metadata.namespace, where=metadata.where
    )
    return PodMember(pod._replace(metadata=own, restart=None), _replicas(spec), fields)


def _check_runs(spec: StrictMapping) -> None:

    if spec.read("suspend", boolean):
        spec.findings.unsupported(
            spec.where.at("suspend"), "is true; submit it, and hold it with `phalanx hold`"
        )


def _replicas(spec: StrictMapping) -> int:
    """A gang runs all at once, so as many complete as run."""
    parallel = spec.read("parallelism", whole(1))
    completions = spec.read("completions", whole(1))
    if completions is not None and completions != (parallel or 1):
        spec.wrong(
            f"is {completions} and parallelism is {parallel or 1}; a gang runs all of its tasks at"
            " once: write the same number",
            "completions",
        )
    return parallel or completions or 1
