"""Bodies of requests: bounded while they come in, and refused with the field that is wrong."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import Request
from litestar.openapi.spec import (
    Example,
    OpenAPIMediaType,
    Operation,
    Reference,
    RequestBody,
    Schema,
)

from phalanx.api.errors import TooLarge, UnsupportedType
from phalanx.api.services import services_of
from phalanx.core.spec.fields import Field, read_table
from phalanx.manifest import documents

#: `curl -d` says it sends a form and sends what it was given; that is read for what it is.
_READ = ("application/json", "application/x-www-form-urlencoded", "")
#: Larger bodies are read in a thread, so that others are answered meanwhile.
_AT_ONCE_BYTES = 64 * 1024
_YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


async def raw(request: Request[Any, Any, Any], limit_bytes: int) -> bytes:
    """The body, if it is not larger. Raises TooLarge as soon as that is known."""
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit_bytes:
        raise too_large(limit_bytes)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the body has more than {limit_bytes} bytes, which is the most that is taken")


async def read(request: Request[Any, Any, Any]) -> list[object]:
    """The documents in a body of JSON or YAML."""
    _check_type(request, (*_READ, *_YAML))
    limit = services_of(request).info.body_limit_bytes
    data = await raw(request, limit)
    if len(data) > _AT_ONCE_BYTES:
        return await asyncio.to_thread(documents.read, data, limit_bytes=limit)
    return documents.read(data, limit_bytes=limit)


async def read_one(
    request: Request[Any, Any, Any], what: str, table: Mapping[str, Field]
) -> dict[str, Any]:
    """The fields of the one mapping in the body. Raises Invalid with every problem in it."""
    found = await read(request)
    return read_table(found[0] if len(found) == 1 else found, what, table)


def _check_type(request: Request[Any, Any, Any], known: tuple[str, ...]) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in known:
        raise UnsupportedType(
            f"the content type {given[:80]} is not read here; send application/json"
            " or application/yaml"
        )


def documented(
    properties: Mapping[str, Schema],
    *examples: Any,
    required: tuple[str, ...] = (),
    media: tuple[str, ...] = ("application/json",),
    schema: Schema | None = None,
) -> type[Operation]:
    """How a body is described, for routes that read it themselves."""
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
