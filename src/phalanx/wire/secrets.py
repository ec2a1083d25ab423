"""Secrets as the API shows them: never with their values."""

import msgspec


class SecretView(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    name: str
    keys: tuple[str, ...]
    changed_at: str
    changed_by: str = ""  #: the name of the token
