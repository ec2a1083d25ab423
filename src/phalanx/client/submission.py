"""Request bodies for jobs: fields of `submit`, a mapping, a `JobSpec`, or the text of a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.native_form import native
from phalanx.core.spec.schema import ROLE_FIELDS, SHORT_FIELDS
from phalanx.wire.jobs import JobView

#: The fields of `submit`, a document in the native or the short form, a `JobSpec`, or the text of a
#: file.
Submittable = Mapping[str, Any] | JobSpec | str | bytes

_ARRAY_FIELDS = {"indices", "params", "parallel"}
#: Fields that only the short form has.
_ONLY_SHORT = SHORT_FIELDS.keys() - {"command", "resources", "priority", "namespace"}


class Body(NamedTuple):
    content: bytes
    media_type: str


def body_of(job: Submittable | Sequence[Submittable]) -> Body:
    """The body for a job. Text is sent unchanged: the server reads YAML and JSON."""
    if isinstance(job, str):
        return Body(job.encode(), "application/yaml")
    if isinstance(job, bytes):
        return Body(job, "application/yaml")
    return Body(json_text(_document(job)).encode(), "application/json")


def json_text(value: Any) -> str:
    """The value as JSON. A job among its values, as `submit` returned it, becomes its id."""
    return json.dumps(value, default=_id_of)


def _id_of(value: Any) -> str:
    if isinstance(value, JobView):
        return value.id
    raise TypeError(f"{value!r} cannot be sent as JSON")


def _document(job: Any) -> Any:
    if isinstance(job, JobSpec):
        return native(job)
    if isinstance(job, Mapping):
        return dict(job)
    return [_document(each) for each in job]


def is_local(server: str) -> bool:
    """Whether a server runs on this machine."""
    return urlsplit(server).hostname in ("127.0.0.1", "localhost", "::1")


def is_of_fields(job: Mapping[str, Any]) -> bool:
    """Whether a mapping has the fields of `submit`, and not those of the native or short form."""
    return "command" in job and "roles" not in job and _ONLY_SHORT.isdisjoint(job)


def _array(array: Any, parallel: int | None) -> Any:
    """The array of a job: indices as text, numbers or a range, or values of parameters by name."""
    if isinstance(array, str) and parallel is None:
        return array
    if isinstance(array, Mapping) and not array.keys() <= _ARRAY_FIELDS:
        array = {"params": {name: list(values) for name, values in array.items()}}
    elif not isinstance(array, Mapping):
        array = {"indices": array if isinstance(array, str) else list(array)}
    return dict(array) if parallel is None else {**array, "parallel": parallel}


def _current_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise ValueError(
            "the current directory was removed; go to another, or pass a working directory"
        ) from None


def one_role(  # noqa: PLR0913
    command: str | Sequence[str],
    *,
    gang: int = 1,
    resources: Mapping[str, object] | None = None,
    is_local: bool = False,
    array: object = None,
    parallel: int | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A job with one role, `worker`, in the native form. `fields` may belong to the job or to the
    role; a field that is None is left out. The working directory of a job that `is_local`, and has
    no image, is the current directory.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name in ("cpu", "gpu", "memory"):
        if name in given:
            raise TypeError(f"{name}= is not a field; pass resources={{{name!r}: {given[name]!r}}}")
    if array is not None:
        given["array"] = _array(array, parallel)
    elif parallel is not None:
        raise TypeError("parallel= is for an array; pass array= too")
    if is_local and "image" not in given:
        given.setdefault("workdir", _current_directory())
    role: dict[str, Any] = {
        "command": command if isinstance(command, str) else list(command),
        "replicas": gang,
        "resources": dict(resources or {}),
    }
    role |= {name: given.pop(name) for name in ROLE_FIELDS if name in given}
    return {"roles": {"worker": role}, **given}
