"""Objects of other schedulers, translated into drafts of jobs and queues of the native form.

`KINDS` says which function reads which kind. The objects can come from a file or from a cluster:
nothing here depends on it.
"""

from collections.abc import Callable, Mapping

from phalanx.core.spec.fields import shown
from phalanx.manifest import (
    batchjob,
    kubeflow,
    kubernetes_podgroup,
    lattice,
    podgroup,
    queue,
    volcano,
)
from phalanx.manifest.draft import JobDraft
from phalanx.manifest.group_check import check_groups
from phalanx.manifest.pod import pod_of
from phalanx.manifest.pod_gangs import PodGangs
from phalanx.manifest.pod_member import PodMember
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping

#: Keys of an object that has no `kind`, because it was cut out of a manifest.
_OBJECT_KEYS = {"metadata", "spec", "labels", "annotations"}


def is_object(document: Mapping[str, object]) -> bool:
    """Whether a document is an object of another scheduler, or a part of one."""
    keys = document.keys()
    if "apiVersion" in keys or "kind" in keys:
        return True
    return "roles" not in keys and not keys.isdisjoint(_OBJECT_KEYS)


class Translation:
    """Collects objects, then returns the jobs and queues that they describe together."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.problems = ProblemList(ignore_unsupported=options.ignore_unsupported)
        self.gangs = PodGangs(self.problems, options)
        self.jobs: list[JobDraft] = []  #: of objects that are a job by themselves
        self.queues: list[queue.LocatedQueue] = []

    def add(self, data: Mapping[str, object], location: SourceLocation) -> None:
        """Translate one object, and report every key in it that is not supported."""
        document = StrictMapping(data, location, self.problems)
        version, kind = document.take("apiVersion"), document.take("kind")
        read = _BY_TEXT.get(("" if version is None else shown(version), shown(kind)))
        if read is None:
            document.problem(_missing_key(version, kind) or _unknown_kind(version, kind))
            return
        read(self, document, str(version or ""))
        document.report_unread()

    def drafts(self) -> list[JobDraft]:
        """All jobs, once every object has been added."""
        drafts = [*self.jobs, *self.gangs.drafts()]
        check_groups(drafts, self.problems)
        return drafts


def _missing_key(version: object, kind: object) -> str | None:
    """The key without which an object cannot be read."""
    if kind is None:
        keys = "kind is" if version is not None else "apiVersion and kind are"
        return (
            f"{keys} missing, so this is a part of an object; write the whole object, like"
            " apiVersion: v1, kind: Pod, metadata, spec"
        )
    versions = sorted(name for name, known in KINDS if known == kind and name)
    if version is not None or not versions:
        return None
    return f"apiVersion is missing; a {kind} has {' or '.join(versions)}"


def _unknown_kind(version: object, kind: object) -> str:
    known = sorted(f"{version} {kind}".strip() for version, kind in KINDS)
    return (
        f"the kind {shown(kind)} of apiVersion {shown(version)} is not supported; write a job in"
        f" the native form, without kind and apiVersion, or one of: {', '.join(known)}"
    )


def _add_pod(translation: Translation, document: StrictMapping, _: str) -> None:
    document.ignore("status")
    translation.gangs.add(PodMember(pod_of(document, translation.options)))


def _add_pod_group(translation: Translation, document: StrictMapping, version: str) -> None:
    translation.gangs.add_group(podgroup.pod_group_of(document, version))


def _add_kubernetes_pod_group(
    translation: Translation, document: StrictMapping, version: str
) -> None:
    translation.gangs.add_group(kubernetes_podgroup.pod_group_of(document, version))


def _add_batch_job(translation: Translation, document: StrictMapping, _: str) -> None:
    translation.gangs.add(batchjob.member_of(document, translation.options))


def _add_volcano_job(translation: Translation, document: StrictMapping, _: str) -> None:
    translation.jobs.append(volcano.draft_of(document, translation.options))


def _add_tf_job(translation: Translation, document: StrictMapping, _: str) -> None:
    job = kubeflow.draft_of(document, translation.options, kubeflow.TENSORFLOW)
    translation.jobs.append(job)


def _add_pytorch_job(translation: Translation, document: StrictMapping, _: str) -> None:
    job = kubeflow.draft_of(document, translation.options, kubeflow.PYTORCH)
    translation.jobs.append(job)


def _add_lattice_job(translation: Translation, document: StrictMapping, _: str) -> None:
    translation.jobs.append(lattice.draft_of(document, translation.options))


def _add_volcano_queue(translation: Translation, document: StrictMapping, _: str) -> None:
    translation.queues.append(queue.volcano_queue(document))


def _add_queue(translation: Translation, document: StrictMapping, _: str) -> None:
    translation.queues.append(queue.native_queue(document))


#: (apiVersion, kind) → the function that reads it.
KINDS: dict[tuple[str, str], Callable[[Translation, StrictMapping, str], None]] = {
    ("v1", "Pod"): _add_pod,
    ("batch/v1", "Job"): _add_batch_job,
    (podgroup.CURRENT, "PodGroup"): _add_pod_group,
    (podgroup.VOLCANO, "PodGroup"): _add_pod_group,
    **{(version, "PodGroup"): _add_pod_group for version in podgroup.OLDER},
    **{
        (version, "PodGroup"): _add_kubernetes_pod_group for version in kubernetes_podgroup.VERSIONS
    },
    (volcano.VERSION, "Job"): _add_volcano_job,
    (kubeflow.VERSION, "TFJob"): _add_tf_job,
    (kubeflow.VERSION, "PyTorchJob"): _add_pytorch_job,
    (queue.VOLCANO, "Queue"): _add_volcano_queue,
    ("", "Queue"): _add_queue,
    **{(version, "LatticeJob"): _add_lattice_job for version in lattice.VERSIONS},
}

#: The same by the text of both values, which need not be strings in a document.
_BY_TEXT = {
    (shown(version) if version else "", shown(kind)): read
    for (version, kind), read in KINDS.items()
}
