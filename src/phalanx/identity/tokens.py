"""Creates tokens, with their rights and their limits. `token_registry` checks them.

A token has 256 random bits, so its SHA-256 reveals nothing about it, and neither does the time of a
lookup by digest.
"""

import hashlib
import re
import secrets
from collections.abc import Iterator
from typing import NamedTuple, get_args
from uuid import uuid4

import msgspec

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.fields import shown
from phalanx.core.spec.names import dns_label, worker_id
from phalanx.core.time_units import HOUR, Micros
from phalanx.identity.principal import EVERY, Role
from phalanx.store.protocol import Token

_PREFIX = "phx_"
_SHOWN_CHARS = len(_PREFIX) + 6
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,98}[A-Za-z0-9])?")
_NAME_FORM = (
    "use at most 100 letters, digits, '-', '_', '.' and '@', and begin and end with a letter or a"
    " digit"
)
_WORKERS_FORM = "name a worker, like w-1, or the beginning of names, like rack7-*, or '*' for all"
#: The fields that apply to some roles only.
_FIELD_ROLES = {"namespaces": ("user",), "workers": ("worker", "join"), "joins": ("join",)}
#: The names of credentials begin with this, and no other names do.
_CREDENTIAL = "worker:"

#: The principal of requests without a token, on the host of an open server; no token has its name.
LOCAL = "local"
ROLES: tuple[Role, ...] = get_args(Role)
#: The role of a session, which has the rights of its owner; see `sessions`.
SESSION = "session"
#: The roles of tokens that are created; an `agent` joins.
CREATED_ROLES: tuple[Role, ...] = ("user", "worker", "join", "admin")
#: How long a join token is valid if nothing else is asked for.
JOIN_LIFETIME: Micros = 24 * HOUR


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A token to be created."""

    name: str
    role: str = "user"
    namespaces: tuple[str, ...] = ()
    workers: str = ""
    lifetime: Micros | None = None
    joins: int | None = None


class NewToken(NamedTuple):
    secret: str  #: shown once and not stored
    token: Token


def new_token(request: TokenRequest, now: Micros) -> NewToken:
    """Raises Invalid with every problem of the request."""
    problems = list(_problems(request))
    if problems:
        raise Invalid(problems)
    secret = new_secret()
    lifetime = request.lifetime
    if lifetime is None and request.role == "join":
        lifetime = JOIN_LIFETIME
    token = Token(
        name=request.name,
        role=request.role,
        digest=digest(secret),
        prefix=shown_prefix(secret),
        created_at=now,
        namespaces=request.namespaces,
        workers=request.workers or (EVERY if request.role == "join" else ""),
        expires_at=None if lifetime is None else now + lifetime,
        joins_left=request.joins,
        id=uuid4().hex,
    )
    return NewToken(secret, token)


def _problems(request: TokenRequest) -> Iterator[Problem]:
    role, workers = request.role, request.workers
    if not _NAME.fullmatch(request.name):
        yield Problem("name", f"is {shown(request.name)}; {_NAME_FORM}")
    if request.name == LOCAL:
        yield Problem(
            "name", f"is {LOCAL}, which stands for requests without a token; choose another"
        )
    if role not in CREATED_ROLES:
        *others, last = CREATED_ROLES
        yield Problem("role", f"is {shown(role)}; write {', '.join(others)} or {last}")
        return
    if role == "user" and not request.namespaces:
        yield Problem("namespaces", "is missing; a user token needs one, or '*' for all")
    yield from _namespace_problems(request.namespaces)
    if role == "worker" and not workers:
        yield Problem("workers", f"is missing; {_WORKERS_FORM}")
    if workers and not _is_pattern(workers):
        yield Problem("workers", f"is {shown(workers)}; {_WORKERS_FORM}")
    if request.joins is not None and request.joins < 1:
        yield Problem("joins", f"is {request.joins}; write a whole number, at least 1")
    if request.lifetime == 0:
        yield Problem("lifetime", "is 0; write a duration, like 30d")
    for field, roles in _FIELD_ROLES.items():
        if role not in roles and getattr(request, field):
            yield Problem(field, f"does not apply to a token of role {role}; leave it out")


def _namespace_problems(namespaces: tuple[str, ...]) -> Iterator[Problem]:
    for position, namespace in enumerate(namespaces):
        if namespace == EVERY:
            continue
        try:
            dns_label(namespace)
        except Invalid as error:
            for problem in error.problems:
                yield Problem(f"namespaces[{position}]", f"{problem.message}, or '*' for all")


def _is_pattern(workers: str) -> bool:
    # A beginning such as `rack7-` is not a valid name by itself.
    name = workers[:-1] + "x" if workers.endswith(EVERY) else workers
    try:
        worker_id(name)
    except Invalid:
        return False
    return True


def new_secret() -> str:
    return _PREFIX + secrets.token_urlsafe(32)


def shown_prefix(secret: str) -> str:
    """The first characters of a secret, by which people recognise it."""
    return secret[:_SHOWN_CHARS]


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def credential_name(worker: str) -> str:
    """The name of the token that is a worker's credential."""
    return _CREDENTIAL + worker


def new_credential(worker: str, secret_digest: str, now: Micros) -> Token:
    """The credential of a worker that has made the secret itself."""
    name, token_id = credential_name(worker), uuid4().hex
    return Token(name, "agent", secret_digest, "", now, workers=worker, id=token_id)
