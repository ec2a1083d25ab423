"""All that is in a file: jobs and queues in the native form, from documents of any dialect.

One table says who reads which kind. A file is taken whole or refused whole.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from phalanx.core.errors import Invalid
from phalanx.core.model import GangMembers, Queue
from phalanx.core.spec.fields import shown
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import is_short_form, job_spec, short_form
from phalanx.manifest import batchjob, documents, kubeflow, lattice, podgroup, queue, volcano
from phalanx.manifest.draft import Draft
from phalanx.manifest.pod import pod_of
from phalanx.manifest.pod_gangs import PodGangs, PodMember, check_groups
from phalanx.manifest.problems import ProblemList, ReadOptions, SourceLocation, Told
from phalanx.manifest.strict_mapping import StrictMapping


class Bundle(NamedTuple):
    jobs: list[JobSpec]
    queues: list[Queue]  #: parents before their children
    warnings: list[Told]
    #: How much of its gang a job is, by namespace and name, where it is made of pods.
    parts: dict[tuple[str, str], GangMembers]

    def part(self, job: JobSpec) -> GangMembers | None:
        return self.parts.get((job.namespace, job.name or ""))


class _Reading:
    """One pass over the documents of a file."""

    def __init__(self, settings: ReadOptions) -> None:
        self.settings = settings
        self.findings = ProblemList(ignore_unsupported=settings.ignore_unsupported)
        self.members = PodGangs(self.findings, whole_gangs=settings.whole_gangs)
        self.drafts: list[Draft] = []
        self.specs: list[JobSpec] = []
        self.queues: list[queue.Named] = []
        self.parts: dict[tuple[str, str], GangMembers] = {}
        self._named: dict[tuple[str, str], SourceLocation] = {}

    def take(self, document: Mapping[str, object], where: SourceLocation) -> None:
        view = StrictMapping(document, where, self.findings)
        version, kind = view.take("apiVersion"), view.take("kind")
        key = ("" if version is None else shown(version), shown(kind))
        read = _BY_WORDS.get(key)
        if read is None:
            view.wrong(_unknown(version, kind))
            return
        read(self, view, str(version or ""))
        view.close()

    def finish(self) -> None:
        drafts = [*self.drafts, *self.members.drafts()]
        check_groups(drafts, self.findings)
        for draft in drafts:
            spec = draft.spec(self.settings, self.findings)
            if spec is not None:
                self._keep(spec, draft.origin("name"))
                if draft.part is not None:
                    self.parts[spec.namespace, spec.name or ""] = draft.part

    def _keep(self, spec: JobSpec, where: SourceLocation) -> None:
        self.specs.append(spec)
        if spec.name is None:
            return
        first = self._named.setdefault((spec.namespace, spec.name), where)
        if first is not where:
            self.findings.wrong(
                where, f"is {spec.name}, as in document {first.document}; choose another"
            )

    def take_native(self, document: object, where: SourceLocation, *, is_alone: bool) -> None:
        settings = self.settings
        try:
            if is_short_form(document):
                self._keep(short_form(document), where)
                return
            if settings.ignore_image:
                document = without_images(document)
            spec = job_spec(
                document,
                priority_classes=settings.priority_classes,
                lost_after=settings.lost_after,
                timezones=settings.timezones,
            )
            self._keep(spec, where.at("name"))
        except Invalid as error:
            if is_alone:
                self.findings.problems += error.problems
            else:
                self.findings.all_wrong(where, error.problems)


def read(data: bytes, settings: ReadOptions | None = None) -> Bundle:
    return bundle(documents.read(data), settings)


def bundle(found: list[object], settings: ReadOptions | None = None) -> Bundle:
    """The jobs of all documents; `Invalid` with the problems of all of them if one has any.

    A list that stands alone is many documents, as JSON has them.
    """
    if len(found) == 1 and isinstance(found[0], list) and found[0]:
        found = found[0]
    reading = _Reading(settings or ReadOptions())
    for number, document in enumerate(found, 1):
        where = SourceLocation(number)
        if isinstance(document, Mapping) and ("apiVersion" in document or "kind" in document):
            reading.take(document, where)
        else:
            reading.take_native(document, where, is_alone=len(found) == 1)
    reading.finish()
    queues = queue.in_order(reading.queues, reading.findings)
    reading.findings.close()
    return Bundle(reading.specs, queues, reading.findings.warnings, reading.parts)


def without_images(document: object) -> object:
    """The native form with its roles on the bare worker."""
    if not isinstance(document, Mapping) or not isinstance(document.get("roles"), Mapping):
        return document
    roles = {
        name: {k: v for k, v in role.items() if k not in ("image", "args")}
        if isinstance(role, Mapping)
        else role
        for name, role in document["roles"].items()
    }
    return {**document, "roles": roles}


def _unknown(version: object, kind: object) -> str:
    known = sorted(f"{version} {kind}".strip() for version, kind in _KINDS)
    return (
        f"the kind {shown(kind)} of apiVersion {shown(version)} is not read here; write a job in"
        f" the native form, without either, or one of: {', '.join(known)}"
    )


def _take_pod(reading: _Reading, view: StrictMapping, _: str) -> None:
    view.skip("status")
    reading.members.add(PodMember(pod_of(view, reading.settings)))


def _take_pod_group(reading: _Reading, view: StrictMapping, version: str) -> None:
    reading.members.add_group(podgroup.pod_group_of(view, version))


def _take_batch_job(reading: _Reading, view: StrictMapping, _: str) -> None:
    reading.members.add(batchjob.member_of(view, reading.settings))


def _take_volcano_job(reading: _Reading, view: StrictMapping, _: str) -> None:
    reading.drafts.append(volcano.draft_of(view, reading.settings))


def _take_tf_job(reading: _Reading, view: StrictMapping, _: str) -> None:
    reading.drafts.append(kubeflow.draft_of(view, reading.settings, kubeflow.TENSORFLOW))


def _take_pytorch_job(reading: _Reading, view: StrictMapping, _: str) -> None:
    reading.drafts.append(kubeflow.draft_of(view, reading.settings, kubeflow.PYTORCH))


def _take_lattice_job(reading: _Reading, view: StrictMapping, _: str) -> None:
    reading.drafts.append(lattice.draft_of(view, reading.settings))


def _take_volcano_queue(reading: _Reading, view: StrictMapping, _: str) -> None:
    reading.queues.append(queue.volcano_queue(view))


def _take_queue(reading: _Reading, view: StrictMapping, _: str) -> None:
    reading.queues.append(queue.native_queue(view))


_KINDS: dict[tuple[str, str], Callable[[_Reading, StrictMapping, str], None]] = {
    ("v1", "Pod"): _take_pod,
    ("batch/v1", "Job"): _take_batch_job,
    (podgroup.PRESENT, "PodGroup"): _take_pod_group,
    (podgroup.VOLCANO, "PodGroup"): _take_pod_group,
    **{(version, "PodGroup"): _take_pod_group for version in podgroup.OLDER},
    (volcano.VERSION, "Job"): _take_volcano_job,
    (kubeflow.VERSION, "TFJob"): _take_tf_job,
    (kubeflow.VERSION, "PyTorchJob"): _take_pytorch_job,
    (queue.VOLCANO, "Queue"): _take_volcano_queue,
    ("", "Queue"): _take_queue,
    **{(version, "LatticeJob"): _take_lattice_job for version in lattice.VERSIONS},
}

#: As they are shown: what a document has there need not be a string.
_BY_WORDS = {
    (shown(version) if version else "", shown(kind)): read
    for (version, kind), read in _KINDS.items()
}
