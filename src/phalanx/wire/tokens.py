"""Tokens, and the credentials of workers, as the API shows them."""

import msgspec


class TokenView(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    #: `user`, `worker`, `join`, `admin`, `agent` for the credential of a worker, or `session`
    role: str
    prefix: str  #: the first characters of the token
    created_at: str
    namespaces: tuple[str, ...] = ()
    workers: str = ""  #: the worker that it is for, or the beginning of names and `*`
    expires_at: str | None = None
    joins_left: int | None = None  #: how many workers can still join
    used_at: str | None = None  #: to the hour, if another server accepted it
    revoked_at: str | None = None  #: of a credential


class CreatedToken(msgspec.Struct, frozen=True):
    secret: str  #: the token itself, which is not stored and cannot be shown again
    token: TokenView


class JoinReply(msgspec.Struct, frozen=True, omit_defaults=True):
    worker: str
    renew_after: float  #: seconds after which the worker should renew its credential
    certificate: str = ""  #: for the key of the signing request, in PEM
    ca: str = ""  #: the certificates of the cluster's authorities, in PEM
