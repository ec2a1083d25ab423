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
    names = " and ".join(pull_secrets)
    exist = "does not exist or has" if len(pull_secrets) == 1 else "do not exist or have"
    return (
        f"pull secret {names} {exist} no login; set it with `phalanx secret set {pull_secrets[0]}"
        f" username=NAME password=- --namespace {namespace}`"
    )


def written_logins(logins: Mapping[str, RegistryLogin]) -> str:
    """The text that `read_logins` reads; empty without logins."""
    if not logins:
        return ""
    auths = {
        registry: {"auth": base64.b64encode(f"{each.username}:{each.password}".encode()).decode()}
        for registry, each in logins.items()
    }
    return json.dumps({"auths": auths})
