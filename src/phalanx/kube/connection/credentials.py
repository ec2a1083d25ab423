"""The credentials of a client: fixed, in files that are replaced, or from a plugin."""

import base64
import time
from pathlib import Path
from typing import Protocol

import msgspec

from phalanx.kube.connection.errors import ConnectionConfigError

#: Files are read again after this time, because kubelets and operators replace them.
FILE_LIFE_S = 60.0


class Credential(msgspec.Struct, frozen=True):
    """What a request presents. Certificate and key are in PEM."""

    token: str = ""
    basic: str = ""  #: base64 of `user:password`
    certificate: bytes = b""
    key: bytes = b""

    @property
    def authorization(self) -> str:
        if self.token:
            return f"Bearer {self.token}"
        return f"Basic {self.basic}" if self.basic else ""


class Credentials(Protocol):
    async def current(self) -> Credential:
        """The credential for the next request. Raises ConnectionConfigError."""

    async def renew(self, refused: Credential) -> Credential:
        """A credential in place of one that the API server refused with 401.

        Returns the same one if there is no other.
        """


class PemSource(msgspec.Struct, frozen=True):
    """A PEM document: inline, or a file."""

    path: Path | None = None
    data: bytes = b""

    def read(self) -> bytes:
        if self.data or self.path is None:
            return self.data
        return read_file(self.path)


class ConfiguredCredentials:
    """Credentials that are written in a kubeconfig file, or in files that it names."""

    def __init__(
        self,
        *,
        token: str = "",
        token_file: Path | None = None,
        basic: str = "",
        certificate: PemSource | None = None,
        key: PemSource | None = None,
    ) -> None:
        self._token = token
        self._token_file = token_file
        self._basic = basic
        self._certificate = certificate or PemSource()
        self._key = key or PemSource()
        self._credential: Credential | None = None
        self._read_at = 0.0

    async def current(self) -> Credential:
        if self._credential is None or time.monotonic() - self._read_at >= FILE_LIFE_S:
            try:
                self._credential = self._read()
            except ConnectionConfigError:
                # The file is being replaced, or is gone for now: the old one may still be good.
                if self._credential is None:
                    raise
            self._read_at = time.monotonic()
        return self._credential

    async def renew(self, refused: Credential) -> Credential:
        if self._credential == refused:
            self._read_at = -FILE_LIFE_S
        return await self.current()

    def _read(self) -> Credential:
        token = self._token
        if self._token_file is not None:
            token = read_file(self._token_file).decode(errors="replace").strip()
            if not token:
                raise ConnectionConfigError(f"the token file {self._token_file} is empty")
        return Credential(token, self._basic, self._certificate.read(), self._key.read())


def read_file(path: Path) -> bytes:
    """The content of the file. Raises ConnectionConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConnectionConfigError(f"cannot read {path}: {error.strerror}") from error


def basic_credential(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()
