"""The metadata of a Kubernetes object: its name, namespace, labels and annotations."""

from typing import NamedTuple

from phalanx.core.spec.names import dns_subdomain
from phalanx.manifest.draft import JobDraft
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.strict_mapping import StrictMapping, word

#: Written by a Kubernetes cluster, and without any effect on how the object runs.
_IGNORED = (
    *("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields"),
    *("selfLink", "ownerReferences", "finalizers"),
)


class Metadata(NamedTuple):
    location: SourceLocation
    name: str | None
    given_namespace: str | None
    labels: StrictMapping
    annotations: StrictMapping

    @property
    def namespace(self) -> str:
        return self.given_namespace or "default"

    def name_job(self, draft: JobDraft) -> None:
        """Give the job the name and the namespace of the object."""
        draft.put("name", self.name, self.location.at("name"))
        draft.put("namespace", self.given_namespace, self.location.at("namespace"))


def metadata_of(document: StrictMapping, *, needs_name: bool = True) -> Metadata:
    """The metadata of an object. Labels and annotations that no code reads are not reported."""
    metadata = document.mapping("metadata")
    metadata.ignore(*_IGNORED)
    name = metadata.read("name", dns_subdomain)
    stem = metadata.read("generateName", word)
    if name is None and stem:
        name = stem.rstrip("-")
    if name is None and needs_name:
        metadata.problem("is missing; write the name of the object", "name")
    namespace = metadata.read("namespace", word)
    if namespace is not None:
        namespace = lower_case(namespace, metadata.location.at("namespace"), metadata.problems)
    return Metadata(
        metadata.location,
        name,
        namespace,
        labels=_unreported(metadata, "labels"),
        annotations=_unreported(metadata, "annotations"),
    )


def _unreported(metadata: StrictMapping, key: str) -> StrictMapping:
    return StrictMapping(metadata.take(key), metadata.location.at(key), metadata.problems)


def lower_case(namespace: str, location: SourceLocation, problems: ProblemList) -> str:
    """The namespace in lower case, as Kubernetes requires it, with one warning if it is not."""
    lower = namespace.lower()
    if namespace != lower:
        message = f'names the namespace {namespace}, read as "{lower}": namespaces are lower-case'
        problems.add_note(location, message, about="namespace")
    return lower
