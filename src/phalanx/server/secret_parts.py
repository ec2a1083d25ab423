"""The providers of secrets, created from the settings of a server."""

from pathlib import Path
from typing import NamedTuple

from phalanx.engine.object_registry import ObjectRegistry
from phalanx.secrets.encryption import load_keys
from phalanx.secrets.providers import (
    SecretProvider,
    SecretResolver,
    SecretsInEnvironment,
    SecretsInFiles,
)
from phalanx.secrets.stored_secrets import StoredSecrets
from phalanx.server.config import Config
from phalanx.store.protocol import Store


class SecretParts(NamedTuple):
    objects: ObjectRegistry
    resolver: SecretResolver


def secret_parts(config: Config, store: Store) -> SecretParts:
    """Raises KeyFileError."""
    path = config["secret_key_file"]
    keys = None if path is None else load_keys(Path(path))
    objects = ObjectRegistry(store)
    stored = StoredSecrets(objects, keys)
    providers = [_provider(each, stored) for each in config["secret_providers"]]
    return SecretParts(objects, SecretResolver(stored, providers))


def _provider(written: str, stored: StoredSecrets) -> SecretProvider:
    kind, _, argument = written.partition(":")
    if kind == "files":
        return SecretsInFiles(Path(argument))
    if kind == "environment":
        return SecretsInEnvironment(argument)
    return stored
