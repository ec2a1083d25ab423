"""The identity of a caller, as the API shows it."""

import msgspec


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str  #: of the token; empty for a caller that needs none
    role: str
    namespaces: tuple[str, ...] | None  #: those that it has access to; null means all
    namespace: str  #: of its jobs, crons and secrets that name none
    has_session: bool = False  #: the caller is a browser that has signed in
