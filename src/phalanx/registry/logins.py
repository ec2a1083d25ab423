"""Names and passwords for registries, in the form of Docker's config.json."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class RegistryLogin(NamedTuple):
    username: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryLogin({self.username})"


def read_logins(config: str) -> dict[str, RegistryLogin]:
    """The logins by registry. Raises ValueError."""
    logins = {}
    try:
        for registry, entry in json.loads(config)["auths"].items():
            username, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
            host = registry.removeprefix("https://").partition("/")[0]
            logins[host] = RegistryLogin(username, password)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__} in the credentials") from None
    return logins


def without_login(pull_secrets: Sequence[str], namespace: str) -> str:
    """Which pull secrets gave no login, and what to do."""
    if len(pull_secrets) == 1:
        missing = f"pull secret {pull_secrets[0]} does not exist or has no login"
    else:
        missing = f"pull secrets {' and '.join(pull_secrets)} do not exist or have no login"
    command = f"phalanx secret set {pull_secrets[0]} username=NAME password=-"
    return f"{missing}; set it with `{command} --namespace {namespace}`"


def written_logins(logins: Mapping[str, RegistryLogin]) -> str:
    """The text that `read_logins` reads; empty without logins."""
    if not logins:
        return ""
    auths = {
        registry: {"auth": base64.b64encode(f"{each.username}:{each.password}".encode()).decode()}
        for registry, each in logins.items()
    }
    return json.dumps({"auths": auths})
