"""Credentials from a program that the kubeconfig file names, as cloud providers offer them."""

import asyncio
import contextlib
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec

from phalanx.kube.connection.credentials import Credential
from phalanx.kube.connection.errors import ConnectionConfigError

GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
#: A plugin that asks a cloud provider takes seconds. One that takes longer hangs.
TIMEOUT_S = 60.0
#: A credential is replaced this long before it expires: a request takes time, and clocks differ.
_EARLY = timedelta(seconds=10)


class ExecVariable(msgspec.Struct, frozen=True):
    name: str
    value: str


class ExecConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The `exec` section of a user in a kubeconfig file."""

    command: str
    api_version: str
    args: list[str] | None = None
    env: list[ExecVariable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


class ExecCredentials:
    """Runs the plugin when there is no credential, when it expires, and when it is refused."""

    def __init__(
        self, config: ExecConfig, folder: Path, user: str, cluster: dict[str, Any]
    ) -> None:
        if config.api_version not in VERSIONS:
            raise ConnectionConfigError(
                f"user {user}: the exec plugin speaks {config.api_version}; use a plugin that"
                f" speaks {VERSIONS[0]}"
            )
        if config.interactive_mode == "Always":
            raise ConnectionConfigError(
                f"user {user}: the exec plugin {config.command} always asks questions, and there"
                " is no terminal; use another user, for example one with a token"
            )
        self._config = config
        self._folder = folder
        self._user = user
        self._cluster = cluster if config.provide_cluster_info else None
        self._credential: Credential | None = None
        self._expires: datetime | None = None
        self._running = asyncio.Lock()

    async def current(self) -> Credential:
        async with self._running:
            if self._credential is None or self._is_expiring():
                self._credential = await self._run()
            return self._credential

    async def renew(self, refused: Credential) -> Credential:
        async with self._running:
            if self._credential is None or self._credential == refused:
                self._credential = await self._run()
            return self._credential

    def _is_expiring(self) -> bool:
        return self._expires is not None and datetime.now(UTC) >= self._expires - _EARLY

    async def _run(self) -> Credential:
        output = await self._output()
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise self._failure(f"wrote no ExecCredential: {error}") from error
        if answer.api_version != self._config.api_version:
            raise self._failure(
                f"answered in {answer.api_version or 'no version'}; the kubeconfig file asks for"
                f" {self._config.api_version}"
            )
        status = answer.status
        if status is None or not (status.token or status.client_certificate_data):
            raise self._failure("returned neither a token nor a certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._failure("returned a certificate without its key, or a key alone")
        self._expires = status.expiration_timestamp
        return Credential(
            token=status.token,
            certificate=status.client_certificate_data.encode(),
            key=status.client_key_data.encode(),
        )

    async def _output(self) -> bytes:
        program = self._program()
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *(self._config.args or ()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(),
            )
        except OSError as error:
            raise self._failure(f"cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise self._failure(f"did not answer within {TIMEOUT_S:.0f} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            said = errors.decode(errors="replace").strip()[-500:]
            raise self._failure(f"ended with status {process.returncode}: {said}")
        return output

    def _program(self) -> str:
        """The path of the plugin. A relative path starts at the folder of the kubeconfig file."""
        command = self._config.command
        program = str(self._folder / command) if os.sep in command else shutil.which(command)
        if program is None or not Path(program).exists():
            hint = f"\n{self._config.install_hint}" if self._config.install_hint else ""
            raise self._failure(f"is not installed.{hint}")
        return program

    def _environment(self) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": False}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        request = {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}
        extra = {variable.name: variable.value for variable in self._config.env or ()}
        info = msgspec.json.encode(request).decode()
        return {**os.environ, **extra, "KUBERNETES_EXEC_INFO": info}

    def _failure(self, what: str) -> ConnectionConfigError:
        return ConnectionConfigError(
            f"user {self._user}: the exec plugin {self._config.command} {what}"
        )
