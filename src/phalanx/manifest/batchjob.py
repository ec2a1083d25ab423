"""The Job of Kubernetes (`batch/v1`): several equal pods, of which some run at the same time."""

from phalanx.core.spec.fields import boolean
from phalanx.manifest.draft import LocatedValue
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import pod_of
from phalanx.manifest.pod_member import PodMember
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

#: The default of Kubernetes.
_BACKOFF_LIMIT = 6


def member_of(document: StrictMapping, options: ReadOptions) -> PodMember:
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    spec.ignore("manualSelector", "selector", "podReplacementPolicy")
    _check_suspended(spec)
    is_indexed = spec.read("completionMode", choice({"Indexed": True, "NonIndexed": False}))
    template = spec.mapping("template")
    pod = pod_of(template, options, {"JOB_COMPLETION_INDEX": "$(task.ordinal)"})
    if is_indexed:
        location = spec.location.at("completionMode")
        pod.role.put_in("env", "JOB_COMPLETION_INDEX", "$(task.ordinal)", location)
    limit = spec.read("backoffLimit", whole(0))
    failures = (_BACKOFF_LIMIT if limit is None else limit) + 1
    fields = {
        "restart": LocatedValue("task", spec.location),
        "max_retries": LocatedValue(failures, spec.location.at("backoffLimit")),
    }
    deadline = spec.read("activeDeadlineSeconds", whole(1))
    if deadline is not None:
        fields["time_limit"] = LocatedValue(deadline, spec.location.at("activeDeadlineSeconds"))
    spec.note_retention()
    own = pod.metadata._replace(
        name=metadata.name,
        given_namespace=metadata.given_namespace,
        location=metadata.location,
    )
    count = _put_counts(spec, fields)
    return PodMember(pod._replace(metadata=own, restart=None), count, fields)


def _check_suspended(spec: StrictMapping) -> None:
    if spec.read("suspend", boolean):
        spec.problems.add_unsupported(
            spec.location.at("suspend"),
            "is true, which is not supported; hold the job with `phalanx hold`",
        )


def _put_counts(spec: StrictMapping, fields: dict[str, LocatedValue]) -> int:
    """The number of pods that must complete. At most `parallelism` of them run at a time."""
    parallel = spec.read("parallelism", whole(1)) or 1
    completions = spec.read("completions", whole(1)) or parallel
    if parallel < completions:
        fields["max_running"] = LocatedValue(parallel, spec.location.at("parallelism"))
    return completions
