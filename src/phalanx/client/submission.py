"""Request bodies for jobs: a mapping, a `JobSpec`, or the text of a file."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.native_form import native
from phalanx.core.spec.schema import ROLE_FIELDS

#: A document in the native or the short form, a `JobSpec`, or the text of a file.
Submittable = Mapping[str, Any] | JobSpec | str | bytes


class Body(NamedTuple):
    content: bytes
    media_type: str


def body_of(job: Submittable | Sequence[Submittable]) -> Body:
    """The body for a job. Text is sent unchanged: the server reads YAML and JSON."""
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
    """A job with one role, `worker`, in the native form. `fields` may belong to the job or to the
    role; a field that is None is left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    role: dict[str, Any] = {
        "command": command if isinstance(command, str) else list(command),
        "replicas": gang,
        "resources": dict(resources or {}),
    }
    role |= {name: given.pop(name) for name in ROLE_FIELDS if name in given}
    return {"roles": {"worker": role}, **given}
