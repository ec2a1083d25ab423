"""What all objects of the API share: metadata, conditions, label selectors.

Fields have the API's names in snake case. Fields that Phalanx does not read are left out, so that
a decoded object takes little memory.
"""

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec


class ApiStruct(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """A part of an API object. Instances never refer to each other in a cycle."""


class OwnerReference(ApiStruct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class ObjectMeta(ApiStruct, frozen=True):
    name: str = ""
    namespace: str = ""  #: empty for cluster-scoped objects
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None  #: set while the object is being deleted
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone for a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that replaces the object when it is lost."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class ApiObject(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class ObjectReference(NamedTuple):
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class ObjectCondition(ApiStruct, frozen=True):
    """A condition of a pod, a node, a PodGroup or a budget."""

    type: str
    status: str  #: `True`, `False` or `Unknown`
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class SelectorRequirement(ApiStruct, frozen=True):
    """A row of `matchExpressions` or `matchFields`.

    Label selectors have `In`, `NotIn`, `Exists` and `DoesNotExist`; node selectors also `Gt` and
    `Lt`.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(ApiStruct, frozen=True):
    """Requirements that must all hold. The empty selector matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[SelectorRequirement, ...] = ()


def time_text(at: datetime) -> str:
    """A time for an annotation, with microseconds."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_of(text: str | None) -> datetime | None:
    """The time in an annotation; None if there is none."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def timestamp() -> str:
    """The present time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
