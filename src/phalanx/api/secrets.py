"""Secrets of namespaces: set, list and remove them. Their values cannot be read."""

from collections.abc import Mapping
from typing import Annotated, Any

from litestar import Request, delete, get, put
from litestar.openapi.spec import Schema
from litestar.params import FromPath, QueryParameter

from phalanx.api import request_body
from phalanx.api.audit import record_of
from phalanx.api.auth import USERS, is_private, principal_of
from phalanx.api.services import services_of
from phalanx.core.spec import names
from phalanx.core.spec.fields import REQUIRED, Field, FieldPath, as_key, refusal
from phalanx.core.spec.secret_value import secret_value
from phalanx.identity.principal import Forbidden, check_namespace
from phalanx.secrets.stored_secrets import ListedSecret, StoredSecrets
from phalanx.wire.secrets import SecretView
from phalanx.wire.times import iso_time

Keys = Annotated[
    str | None,
    QueryParameter(description="The keys to remove, separated by commas. Default: all."),
]


def _data(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not value:
        raise refusal("is missing; write keys with their values, like {token: …}")
    path, data = FieldPath(), {}
    for key, each in value.items():
        with path.at(as_key(key)):
            data[names.secret_key(key)] = secret_value(each)
    path.raise_problems()
    return data


_FIELDS = {"data": Field(_data, REQUIRED)}
_BODY = request_body.documented(
    {"data": Schema(type="object")},  # type: ignore[arg-type]
    {"data": {"bucket": "s3://models", "access-key": "AKIA…"}},
    required=("data",),
)


@put(
    "/secrets/{namespace:str}/{name:str}",
    operation_class=_BODY,
    opt={"allowed": USERS, "action": "set secret", "decided_by": "ManageSecret"},
    summary="Set keys of a secret",
)
async def set_secret(
    request: Request[Any, Any, Any], namespace: FromPath[str], name: FromPath[str]
) -> SecretView:
    """Other keys of the secret stay as they are. Refused on a connection that is neither TLS nor on
    a loopback address."""
    principal, services = principal_of(request), services_of(request)
    _check_name("namespace", namespace)
    _check_name("name", name)
    check_namespace(principal, namespace)
    if not is_private(request.scope):
        raise Forbidden("secrets are accepted only over TLS or on a loopback address")
    fields = await request_body.read_one(request, "a mapping, like {data: {token: …}}", _FIELDS)
    services.engine.check_leading()
    audit = record_of(request, services.clock(), kind="secret", namespace=namespace, target=name)
    secret = await _stored(request).set(namespace, name, fields["data"], principal.name, audit)
    return secret_view(secret)


@get("/secrets", opt={"allowed": USERS}, summary="List the secrets")
async def list_secrets(request: Request[Any, Any, Any]) -> list[SecretView]:
    """The names of their keys, without the values, of the namespaces that the caller may use."""
    principal, services = principal_of(request), services_of(request)
    services.engine.check_leading()
    await services.objects.refresh()
    return [
        secret_view(secret)
        for secret in _stored(request).list()
        if principal.may_see(secret.namespace)
    ]


@delete(
    "/secrets/{namespace:str}/{name:str}",
    opt={"allowed": USERS, "action": "remove secret", "decided_by": "ManageSecret"},
    status_code=204,
    summary="Remove a secret, or keys of it",
)
async def remove_secret(
    request: Request[Any, Any, Any],
    namespace: FromPath[str],
    name: FromPath[str],
    keys: Keys = None,
) -> None:
    """Tasks that run already keep their values."""
    principal, services = principal_of(request), services_of(request)
    check_namespace(principal, namespace)
    services.engine.check_leading()
    await services.objects.refresh()
    audit = record_of(request, services.clock(), kind="secret", namespace=namespace, target=name)
    listed = tuple(keys.split(",")) if keys else ()
    await _stored(request).remove(namespace, name, listed, principal.name, audit)


def _stored(request: Request[Any, Any, Any]) -> StoredSecrets:
    return services_of(request).secrets


def _check_name(path: str, name: str) -> None:
    field = FieldPath()
    with field.at(path):
        names.dns_label(name)
    field.raise_problems()


def secret_view(secret: ListedSecret) -> SecretView:
    return SecretView(
        secret.namespace,
        secret.name,
        secret.keys,
        iso_time(secret.changed_at),
        secret.changed_by,
    )


ROUTES = [set_secret, list_secrets, remove_secret]
