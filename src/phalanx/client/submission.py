"""What can be submitted, as the body of a request: a mapping, a specification, a file's text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.native_form import native
from phalanx.core.spec.schema import ROLE_FIELDS

#: A document in the native or the short form, a specification, or the text of a file.
Submittable = Mapping[str, Any] | JobSpec | str | bytes


class Body(NamedTuple):
    content: bytes
    media_type: str


def body_of(job: Submittable | Sequence[Submittable]) -> Body:
    """Text is sent as it is: a server reads YAML and JSON, and names the lines that are wrong."""
    if isinstance(job, str):
        return Body(job.encode(), "application/yaml")
    if isinstance(job, bytes):
        return Body(job, "application/yaml")
    return Body(json.dumps(_document(job)).encode(), "application/json")


def _document(job: Any) -> Any:
    if isinstance(job, JobSpec):
        return native(job)
    if isinstance(job, Mapping):
        return dict(job)
    return [_document(each) for each in job]


def one_role(
    command: str | Sequence[str],
    *,
    gang: int = 1,
    resources: Mapping[str, object] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A job of one role, called `worker`, in the native form. `fields` are the job's, or the
    role's; those that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    role: dict[str, Any] = {
        "command": command if isinstance(command, str) else list(command),
        "replicas": gang,
        "resources": dict(resources or {}),
    }
    role |= {name: given.pop(name) for name in ROLE_FIELDS if name in given}
    return {"roles": {"worker": role}, **given}
