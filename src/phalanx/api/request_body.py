"""Request bodies: limited in size while they arrive, refused with the path of each problem."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import Request
from litestar.exceptions import InternalServerException
from litestar.openapi.spec import (
    Example,
    OpenAPIMediaType,
    Operation,
    Reference,
    RequestBody,
    Schema,
)

from phalanx.api.auth import principal_of
from phalanx.api.errors import TooLarge, UnsupportedType, wrong
from phalanx.api.services import services_of
from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.fields import Field, read_table, shown

#: `curl -d` declares a form, whatever it sends.
_READ = ("application/json", "application/x-www-form-urlencoded", "")
#: The largest body that is one small object, such as a worker or a queue.
_OBJECT_BYTES = 64 * 1024
_YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


async def raw(request: Request[Any, Any, Any], limit_bytes: int) -> bytes:
    """The body. Raises TooLarge as soon as more than the limit has arrived."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise too_large(limit_bytes)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit_bytes:
                raise too_large(limit_bytes)
            chunks.append(chunk)
    except InternalServerException:  # the connection has ended, and no client reads the refusal
        raise wrong("", "the body is incomplete; send it again") from None
    return b"".join(chunks)


def too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than the limit of {limit_bytes} bytes; send less")


async def manifest(
    request: Request[Any, Any, Any], what: str, limit_bytes: int | None = None
) -> bytes:
    """A body of JSON or YAML, before it is read; `what` is expected there."""
    _check_type(request, (*_READ, *_YAML))
    limit = services_of(request).info.body_limit_bytes
    data = await raw(request, limit if limit_bytes is None else min(limit, limit_bytes))
    if not data.strip():
        raise wrong("", f"the body is empty; send {what}")
    return data


async def read_one(
    request: Request[Any, Any, Any], what: str, table: Mapping[str, Field]
) -> dict[str, Any]:
    """The fields of the one mapping in the body, which is `what`. Raises Invalid with every
    problem in it."""
    return checked(await document(request, what), what, table)


async def document(request: Request[Any, Any, Any], what: str) -> object:
    """The one document in the body, which is `what`; all of them if there are several."""
    data = await manifest(request, what, _OBJECT_BYTES)
    services, caller = services_of(request), principal_of(request).name
    documents = await services.reader.documents(data, caller)
    return documents[0] if len(documents) == 1 else documents


def checked(document: object, what: str, table: Mapping[str, Field]) -> dict[str, Any]:
    """The fields of a mapping. Raises Invalid with every problem in it."""
    try:
        return read_table(document, what, table)
    except Invalid as error:
        raise Invalid([_with_subject(problem) for problem in error.problems]) from None


def _with_subject(problem: Problem) -> Problem:
    return problem if problem.path else Problem("", f"the body {problem.message}")


def _check_type(request: Request[Any, Any, Any], accepted: tuple[str, ...]) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in accepted:
        raise UnsupportedType(
            f"the content type is {shown(given)}; send application/json or application/yaml"
        )


def documented(
    properties: Mapping[str, Schema],
    *examples: Any,
    required: tuple[str, ...] = (),
    media: tuple[str, ...] = ("application/json",),
    schema: Schema | None = None,
) -> type[Operation]:
    """The OpenAPI description of a body, for routes that read it themselves."""
    described = schema or Schema(
        type="object",  # type: ignore[arg-type]
        properties=dict(properties),
        required=list(required) or None,
    )
    shown: dict[str, Example | Reference] = {
        f"{number}": Example(value=value) for number, value in enumerate(examples, 1)
    }
    body = RequestBody(
        content={kind: OpenAPIMediaType(schema=described, examples=shown) for kind in media},
        required=True,
    )

    @dataclass
    class Documented(Operation):
        def __post_init__(self) -> None:
            self.request_body = body

    return Documented
