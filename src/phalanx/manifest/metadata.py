"""The metadata of a Kubernetes object: its name, its namespace, its labels and annotations."""

from typing import NamedTuple

from phalanx.core.spec.names import dns_subdomain
from phalanx.manifest.draft import Draft
from phalanx.manifest.problems import ProblemList, SourceLocation
from phalanx.manifest.strict_mapping import StrictMapping, word

#: What a cluster writes, and what says nothing about how to run something.
_SKIPPED = (
    *("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields"),
    *("selfLink", "ownerReferences", "finalizers"),
)


class Metadata(NamedTuple):
    where: SourceLocation
    name: str | None
    namespace: str | None
    labels: StrictMapping
    annotations: StrictMapping

    @property
    def home(self) -> str:
        return self.namespace or "default"

    def name_job(self, draft: Draft) -> None:
        draft.put("name", self.name, self.where.at("name"))
        draft.put("namespace", self.namespace, self.where.at("namespace"))


def metadata_of(document: StrictMapping, *, needs_name: bool = True) -> Metadata:
    """Labels and annotations that nobody asks for are nobody's business: they are not closed."""
    view = document.view("metadata")
    view.skip(*_SKIPPED)
    name = view.read("name", dns_subdomain)
    stem = view.read("generateName", word)
    if name is None and stem:
        name = stem.rstrip("-")
    if name is None and needs_name:
        view.wrong("is missing; write the name of the object", "name")
    namespace = view.read("namespace", word)
    if namespace is not None:
        namespace = lowered(namespace, view.where.at("namespace"), view.findings)
    return Metadata(view.where, name, namespace, _open(view, "labels"), _open(view, "annotations"))


def _open(view: StrictMapping, key: str) -> StrictMapping:
    return StrictMapping(view.take(key), view.where.at(key), view.findings)


def lowered(namespace: str, where: SourceLocation, findings: ProblemList) -> str:
    """Namespaces have lower-case letters only; documents that were never applied may not know."""
    if namespace != namespace.lower():
        findings.read_as(where, f'is read as "{namespace.lower()}": namespaces are lower-case')
    return namespace.lower()
