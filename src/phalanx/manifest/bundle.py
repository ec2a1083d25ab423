"""The jobs and queues of a file, from documents in the native form or of any dialect.

A file is accepted as a whole or refused as a whole, with the problems of all its documents.
"""

from collections.abc import Mapping
from typing import NamedTuple

from phalanx.core.errors import Invalid
from phalanx.core.model import GangMembers, Queue
from phalanx.core.spec.fields import refusal
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.native_form import native
from phalanx.core.spec.validation import is_short_form, job_spec, short_form
from phalanx.manifest import documents, queue
from phalanx.manifest.alibaba_ack import NAMES
from phalanx.manifest.overrides import with_overrides
from phalanx.manifest.pod_gangs import IncompleteGang
from phalanx.manifest.problems import ManifestWarning, SourceLocation
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.translation import Translation, is_object

#: Tasks of all jobs of one input together.
INPUT_TASK_LIMIT = 10_000


class Bundle(NamedTuple):
    jobs: list[JobSpec]
    queues: list[Queue]  #: parents before their children
    warnings: list[ManifestWarning]
    #: namespace/name of a job that was read from pods → the members that it has.
    parts: dict[str, GangMembers]
    is_short: bool = False  #: whether its only document is in the short form

    def part(self, job: JobSpec) -> GangMembers | None:
        return self.parts.get(_full_name(job))


def _full_name(job: JobSpec) -> str:
    return f"{job.namespace}/{job.name or ''}"


def read(data: bytes, options: ReadOptions | None = None) -> Bundle:
    """The jobs and queues of a file. Raises Invalid."""
    return bundle(documents.read(data), options)


def bundle(contents: list[object], options: ReadOptions | None = None) -> Bundle:
    """The jobs and queues of all documents. Raises Invalid with the problems of all of them."""
    is_short = len(contents) == 1 and is_short_form(contents[0])
    contents = documents.entries(contents)
    options = options or ReadOptions()
    if options.namespace is not None:
        contents = [in_namespace(document, options.namespace) for document in contents]
    file = _File(options)
    for number, document in enumerate(contents, 1):
        location = SourceLocation(f"document {number}")
        if isinstance(document, Mapping) and is_object(document):
            file.translation.add(document, location)
        else:
            file.add_native(document, location, is_only=len(contents) == 1)
    return file.bundle()._replace(is_short=is_short)


class _File:
    """The documents of a file that have been read so far."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.translation = Translation(options)
        self._problems = self.translation.problems
        self._jobs: list[JobSpec] = []
        self._parts: dict[str, GangMembers] = {}
        self._locations: dict[tuple[str, str], SourceLocation] = {}

    def add_native(self, document: object, location: SourceLocation, *, is_only: bool) -> None:
        """Add a document in the native form. The only document of a file needs no number."""
        options = self._options
        try:
            if is_short_form(document) and not options.overrides:
                self._add(short_form(document), location)
                return
            if is_short_form(document):
                document = native(short_form(document))
            if options.ignore_image:
                document = without_images(document)
            spec = job_spec(
                with_overrides(document, options.overrides),
                priority_classes=options.priority_classes,
                lost_after=options.lost_after,
                timezones=options.timezones,
                run_as_users=options.run_as_users,
                image_map=options.image_map,
            )
            self._add(spec, location.at("name"))
        except Invalid as error:
            if is_only:
                self._problems.add_unlocated(error.problems)
            else:
                self._problems.add_all(location, error.problems)

    def bundle(self) -> Bundle:
        """The content of the file, once all documents have been added. Raises Invalid."""
        for draft in self.translation.drafts():
            spec = draft.spec(self._options, self._problems)
            if spec is not None:
                self._add(spec, draft.origin("name"))
                if draft.part is not None:
                    self._parts[_full_name(spec)] = draft.part
        if self._options.whole_gangs:
            for gang in self.translation.gangs.incomplete:
                self._problems.add(gang.location, _missing_members(gang))
        queues = queue.parents_first(self.translation.queues, self._problems)
        self._problems.raise_problems()
        check_tasks(sum(spec.size for spec in self._jobs))
        return Bundle(self._jobs, queues, self._problems.warnings, self._parts)

    def _add(self, spec: JobSpec, location: SourceLocation) -> None:
        self._jobs.append(spec)
        if spec.name is None:
            return
        first = self._locations.setdefault((spec.namespace, spec.name), location)
        if first is not location:
            self._problems.add(
                location, f"is {spec.name}, as in {first.source}; choose another name"
            )


def check_tasks(count: int) -> None:
    """Refuse an input whose jobs have too many tasks in all."""
    if count > INPUT_TASK_LIMIT:
        raise refusal(
            f"the input has {count} tasks in all, and at most {INPUT_TASK_LIMIT} are accepted;"
            " submit its jobs in several requests"
        )


def _missing_members(gang: IncompleteGang) -> str:
    if gang.members == 0:
        return (
            f"is {gang.name}, but no pod of namespace {gang.namespace} in this file belongs to it;"
            f" add its pods, with the label {NAMES[0]}: {gang.name}"
        )
    if gang.minimum is None:
        return (
            f"is {gang.name}, but this file has no PodGroup of that name; add it, or add"
            " min-available to the pods"
        )
    return (
        f"is {gang.minimum}, but the number of members in this file is {gang.members}; put all"
        " members of the gang in one file"
    )


def in_namespace(document: object, namespace: str) -> object:
    """The document with this namespace, unless it names one."""
    if not isinstance(document, Mapping):
        return document
    if not is_object(document):
        return document if document.get("namespace") else {**document, "namespace": namespace}
    if isinstance(items := document.get("items"), list):
        return {**document, "items": [in_namespace(item, namespace) for item in items]}
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("namespace"):
        return document
    return {**document, "metadata": {**metadata, "namespace": namespace}}


def without_images(document: object) -> object:
    """A document of the native form whose roles run directly on the worker."""
    if not isinstance(document, Mapping) or not isinstance(document.get("roles"), Mapping):
        return document
    roles = {
        name: {k: v for k, v in role.items() if k not in ("image", "args")}
        if isinstance(role, Mapping)
        else role
        for name, role in document["roles"].items()
    }
    return {**document, "roles": roles}
