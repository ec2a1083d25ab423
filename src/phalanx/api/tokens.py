"""Tokens: create, list, rotate and revoke them."""

from typing import Any

from litestar import Request, delete, get, post
from litestar.openapi.spec import Schema
from litestar.params import FromPath

from phalanx.api import request_body
from phalanx.api.audit import record_of
from phalanx.api.auth import ADMINS
from phalanx.api.services import services_of
from phalanx.core.spec.durations import duration
from phalanx.core.spec.fields import REQUIRED, Field, integer, items, text
from phalanx.identity.token_changes import ListedToken
from phalanx.identity.tokens import NewToken, TokenRequest
from phalanx.wire.times import iso_time, iso_time_or_none
from phalanx.wire.tokens import CreatedToken, TokenView

_MAX_JOINS = 1_000_000


def _names(value: object) -> tuple[str, ...]:
    return tuple(text(each) for each in items(value, "a list of namespaces"))


_FIELDS = {
    "name": Field(text, REQUIRED),
    "role": Field(text, "user"),
    "namespaces": Field(_names, ()),
    "workers": Field(text, ""),
    "expires": Field(duration),
    "joins": Field(integer(1, _MAX_JOINS)),
}
_STRING = Schema(type="string")  # type: ignore[arg-type]
_BODY = request_body.documented(
    {
        "name": _STRING,
        "role": _STRING,
        "namespaces": Schema(type="array", items=_STRING),  # type: ignore[arg-type]
        "workers": _STRING,
        "expires": _STRING,
        "joins": Schema(type="integer"),  # type: ignore[arg-type]
    },
    {"name": "ada", "namespaces": ["ml"], "expires": "90d"},
    {"name": "rack-7", "role": "join", "workers": "rack7-*", "expires": "1h", "joins": 16},
    required=("name",),
)


@post(
    "/tokens",
    operation_class=_BODY,
    opt={"allowed": ADMINS, "action": "create token"},
    summary="Create a token",
)
async def create(request: Request[Any, Any, Any]) -> CreatedToken:
    """The answer has the token itself, which is not stored and cannot be shown again."""
    fields = await request_body.read_one(request, "a mapping, like {name: ada}", _FIELDS)
    wanted = TokenRequest(
        name=fields["name"],
        role=fields["role"],
        namespaces=fields["namespaces"],
        workers=fields["workers"],
        lifetime=fields["expires"],
        joins=fields["joins"],
    )
    services = services_of(request)
    audit = record_of(request, services.clock(), target=wanted.name)
    return created_view(await services.tokens.create(wanted, audit))


@get("/tokens", opt={"allowed": ADMINS}, summary="List the tokens")
async def list_tokens(request: Request[Any, Any, Any]) -> list[TokenView]:
    """By name, with the credentials of workers, whose names begin with `worker:`."""
    return [token_view(each) for each in await services_of(request).tokens.list()]


@post(
    "/tokens/{name:str}/rotate",
    opt={"allowed": ADMINS, "action": "rotate token"},
    status_code=200,
    summary="Give a token a new secret",
)
async def rotate(request: Request[Any, Any, Any], name: FromPath[str]) -> CreatedToken:
    """The previous secret stays valid until the new one is used for the first time."""
    services = services_of(request)
    audit = record_of(request, services.clock(), target=name)
    return created_view(await services.tokens.rotate(name, audit))


@delete(
    "/tokens/{name:str}",
    opt={"allowed": ADMINS, "action": "revoke token"},
    status_code=204,
    summary="Revoke a token",
)
async def revoke(request: Request[Any, Any, Any], name: FromPath[str]) -> None:
    """Every server refuses it within five seconds."""
    services = services_of(request)
    await services.tokens.revoke(name, record_of(request, services.clock(), target=name))


def created_view(new: NewToken) -> CreatedToken:
    return CreatedToken(new.secret, token_view(ListedToken(new.token, None)))


def token_view(listed: ListedToken) -> TokenView:
    token = listed.token
    return TokenView(
        name=token.name,
        role=token.role,
        prefix=token.prefix,
        created_at=iso_time(token.created_at),
        namespaces=token.namespaces,
        workers=token.workers,
        expires_at=iso_time_or_none(token.expires_at),
        joins_left=token.joins_left,
        used_at=iso_time_or_none(listed.used_at),
        revoked_at=iso_time_or_none(token.revoked_at),
    )


ROUTES = [create, list_tokens, rotate, revoke]
