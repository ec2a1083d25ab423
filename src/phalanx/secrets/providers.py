"""Where the values of secrets come from: the store, files, or variables of the server.

The providers are asked in the order in which they are configured. The first one that has a key of a
secret gives its value.
"""

import asyncio
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from phalanx.core.errors import Invalid
from phalanx.core.spec.secret_references import SecretKey
from phalanx.core.spec.secret_value import VALUE_LIMIT_BYTES, secret_value
from phalanx.engine.gang_inputs import InputMissing, InputUnavailable
from phalanx.secrets.stored_secrets import StoredSecrets

#: How long files may take: longer than a file system should, shorter than a reservation lasts.
_TIMEOUT_S = 10.0
_WORD = re.compile(r"[a-z0-9]+(?:[-_.]?[a-z0-9]+)*", re.IGNORECASE)


class SecretProvider(Protocol):
    def find(self, namespace: str, wanted: SecretKey) -> str | None:
        """The value of a key; None if this provider has none. Raises InputUnavailable."""


class SecretsInFiles:
    """Files `NAMESPACE/NAME/KEY` below a folder, as an agent of a vault or a mount leaves them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, namespace: str, wanted: SecretKey) -> str | None:
        """The content of the file without the newline at its end."""
        if wanted.key in (".", ".."):
            return None
        path = self._folder / namespace / wanted.name / wanted.key
        try:
            with path.open("rb") as file:
                data = file.read(VALUE_LIMIT_BYTES + 2)  # a newline more than is accepted
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise InputUnavailable(
                f"secret {namespace}/{wanted}: {path} cannot be read: {error.strerror}"
            ) from None
        try:
            text = data.decode().removesuffix("\n")
        except UnicodeDecodeError:
            raise InputMissing(f"secret {namespace}/{wanted}: {path} is not UTF-8 text") from None
        try:
            return secret_value(text)
        except Invalid as error:
            raise InputMissing(f"secret {namespace}/{wanted}: {path} {error}") from None


class SecretsInEnvironment:
    """Variables `PREFIX` + `NAMESPACE__NAME__KEY` of the server, in capitals, with `_` for `-`."""

    def __init__(self, prefix: str, environ: Mapping[str, str] | None = None) -> None:
        self._prefix = prefix
        self._environ = os.environ if environ is None else environ

    def find(self, namespace: str, wanted: SecretKey) -> str | None:
        words = (namespace, *wanted)
        # Otherwise two secrets could have the same variable, also of different namespaces.
        if not all(_WORD.fullmatch(word) for word in words):
            return None
        name = "__".join(re.sub(r"[-.]", "_", word).upper() for word in words)
        return self._environ.get(self._prefix + name)


class SecretResolver:
    """Asks all providers. Files are read in a thread, so that a slow disk stops nothing else."""

    def __init__(self, stored: StoredSecrets, providers: Sequence[SecretProvider]) -> None:
        self.stored = stored
        self._providers = providers

    async def resolve(self, namespace: str, keys: Collection[SecretKey]) -> dict[SecretKey, str]:
        """The values of the keys. Raises InputUnavailable."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await asyncio.to_thread(self._find_all, namespace, keys)
        except TimeoutError:
            raise InputUnavailable(
                f"the secrets of namespace {namespace} could not be read within {_TIMEOUT_S:.0f} s"
            ) from None

    async def find(self, namespace: str, keys: Collection[SecretKey]) -> dict[SecretKey, str]:
        """The values of those keys that exist. Raises InputUnavailable."""
        found = {}
        for key in keys:
            value = await asyncio.to_thread(self._find, namespace, key)
            if value is not None:
                found[key] = value
        return found

    def _find_all(self, namespace: str, keys: Collection[SecretKey]) -> dict[SecretKey, str]:
        values = {}
        for key in keys:
            value = self._find(namespace, key)
            if value is None:
                raise InputMissing(
                    f"secret {namespace}/{key.name} has no key {key.key}; set it with `phalanx"
                    f" secret set {key.name} {key.key}=- --namespace {namespace}`"
                )
            values[key] = value
        return values

    def _find(self, namespace: str, key: SecretKey) -> str | None:
        for provider in self._providers:
            value = provider.find(namespace, key)
            if value is not None:
                return value
        return None
