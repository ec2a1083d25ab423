"""The worker's membership in a cluster: it joins with a join token, and renews its credential.

With TLS, the worker gets a certificate together with each credential.

The worker makes each secret and stores it before the server learns its digest. A request whose
answer was lost is repeated with the same secret, also after a crash of either side.
"""

import asyncio
import hashlib
import random
import secrets
import time
from collections.abc import Callable
from urllib.parse import quote

import msgspec
import structlog
from msgspec.structs import replace

from phalanx.agent.credential import CredentialFile, WorkerCredential
from phalanx.agent.link.leader_client import CredentialRefused, LeaderClient, Unreachable
from phalanx.agent.tls_identity import TlsIdentity
from phalanx.wire.errors import error_message
from phalanx.wire.tokens import JoinReply

_decode = msgspec.json.Decoder(JoinReply).decode

#: How long a renewal that failed waits for its next try, and the longest sleep between two looks at
#: the clock, which may be set.
_RETRY_S, _LOOK_S = 60.0, 600.0
#: Renewals are spread over this part of the interval.
_SPREAD = (0.8, 1.0)


class JoinRefused(CredentialRefused):
    """The server did not accept the join token, or not for this worker."""


class Membership:
    def __init__(
        self,
        worker: str,
        file: CredentialFile,
        join_token: Callable[[], str | None],
        tls: TlsIdentity | None = None,
    ) -> None:
        """Raises CredentialError."""
        self._tls = tls
        self._worker = worker
        self._file = file
        self._join_token = join_token
        self._credential = file.load(worker)
        self._is_accepted = asyncio.Event()
        if self._credential is not None and self._credential.is_joined:
            self._is_accepted.set()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def bearer(self) -> str | None:
        """The token of the worker's requests; None for a worker that has not joined."""
        credential = self._credential
        return credential.secret if credential is not None and credential.is_joined else None

    async def ensure(self, server: LeaderClient) -> None:
        """Join, if there is a join token and the server has not accepted the credential.

        Raises Unreachable. The join token is read again at each call.
        """
        if self._is_accepted.is_set():
            return
        try:
            token = self._join_token()
        except ValueError as error:
            raise Unreachable(str(error)) from None
        if token is None:
            return
        credential = self._credential or self._new()
        body = {"id": self._worker, **self._renewal(credential.secret)}
        try:
            reply = await server.call(
                "POST", "/workers/join", msgspec.json.encode(body), bearer=token
            )
        except CredentialRefused as error:
            raise JoinRefused(f"cannot join the cluster: {error}") from None
        if reply.status != 200:
            raise JoinRefused(f"cannot join the cluster: {error_message(reply.body)}")
        joined = _decode(reply.body)
        self._accept_certificate(joined)
        self._save(replace(credential, is_joined=True), joined)
        self._is_accepted.set()
        server.close()  # its connections have not shown the certificate
        self._log.info("joined the cluster", worker=self._worker, server=server.leader)

    def refused(self, error: CredentialRefused) -> str:
        """Note that the worker has to join again. Returns the error with its cure."""
        self._is_accepted.clear()
        if isinstance(error, JoinRefused):
            return str(error)
        if self.bearer() is None or error.lacks_certificate:
            return f"{error}; start the worker with a join token (--token-file)"
        return (
            f"the server refused the credential in {self._file.path}: {error}; remove the file and"
            " start the worker with a join token (--token-file)"
        )

    async def keep_renewing(self, server: LeaderClient) -> None:
        """Renew the credential whenever it is due, forever."""
        while True:
            await self._is_accepted.wait()
            if (left := self._due_in_s()) > 0:
                await asyncio.sleep(min(left, _LOOK_S))
                continue
            try:
                await self.renew(server)
            except (Unreachable, OSError) as error:
                self._log.warning("cannot renew the credential", error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def renew(self, server: LeaderClient) -> None:
        """Replace the credential by a new one. Raises Unreachable or OSError."""
        credential = self._joined()
        if not credential.next_secret:
            credential = replace(credential, next_secret=_new_secret())
            self._file.save(credential)
            self._credential = credential
        body = self._renewal(credential.next_secret)
        path = f"/workers/{quote(self._worker)}/credential"
        reply = await server.call("POST", path, msgspec.json.encode(body))
        if reply.status != 200:
            raise Unreachable(error_message(reply.body))
        answer = _decode(reply.body)
        self._accept_certificate(answer)
        renewed = replace(credential, secret=credential.next_secret, next_secret="")
        self._save(renewed, answer)
        self._log.info("renewed the credential", worker=self._worker)

    def _due_in_s(self) -> float:
        """Seconds until the next renewal; none if one was begun and not finished."""
        credential = self._joined()
        if credential.next_secret or (self._tls is not None and self._tls.is_due):
            return 0.0
        return credential.renew_at - time.time()

    def _joined(self) -> WorkerCredential:
        if self._credential is None:
            raise AssertionError("bug: a worker without a credential was accepted")
        return self._credential

    def _renewal(self, secret: str) -> dict[str, str]:
        """The fields that ask for a credential, and with TLS for a certificate too."""
        asked = {"credential": _digest(secret)}
        return asked if self._tls is None else asked | {"csr": self._tls.request()}

    def _accept_certificate(self, reply: JoinReply) -> None:
        if self._tls is None or not reply.certificate:
            return
        try:
            self._tls.accept(reply.certificate, reply.ca)
        except (OSError, ValueError) as error:
            raise Unreachable(f"cannot use the certificate of the server: {error}") from error

    def _new(self) -> WorkerCredential:
        """A secret that is durable before the server learns of it. Raises Unreachable."""
        credential = WorkerCredential(self._worker, _new_secret())
        try:
            self._file.save(credential)
        except OSError as error:
            raise Unreachable(f"cannot write {self._file.path}: {error.strerror}") from error
        self._credential = credential
        return credential

    def _save(self, credential: WorkerCredential, reply: JoinReply) -> None:
        wait_s = reply.renew_after * random.uniform(*_SPREAD)  # noqa: S311
        credential = replace(credential, renew_at=time.time() + wait_s)
        try:
            self._file.save(credential)
        except OSError as error:
            raise Unreachable(f"cannot write {self._file.path}: {error.strerror}") from error
        self._credential = credential


def _new_secret() -> str:
    return "phx_" + secrets.token_urlsafe(32)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
