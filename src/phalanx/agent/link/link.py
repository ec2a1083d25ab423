"""The side of a worker that talks to the server: says what changed, and does what it is told.

It keeps nothing that the spawner does not know as well, so it can end and begin again at any time.
"""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
import structlog

from phalanx.agent.link.controller import AttemptController
from phalanx.agent.link.leader_client import LeaderClient, Unreachable
from phalanx.agent.messages import Lease
from phalanx.core.model import Protocol
from phalanx.core.spec.job import SECOND
from phalanx.wire.errors import ErrorBody
from phalanx.wire.sync import SyncReply, SyncRequest

Logger = structlog.typing.FilteringBoundLogger

_WAIT_S = 10.0
#: An answer may be this late; then the server is not there.
_LATE_S = 5.0
_FULL_S = 60.0
#: What was just ordered has this long to come to something before the next call.
_OUTCOME_S = 0.01
_BACKOFF_S = (0.05, 1.0)
#: A fenced task's worker is heard twice in the time that its lease leaves, and some.
_LEASE_SLACK_S = 5.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SyncReply).decode
_refusal = msgspec.json.Decoder(ErrorBody).decode


class Superseded(Exception):  # noqa: N818
    """Another agent has registered under the name of this worker."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker tells of itself."""

    id: str
    protocol: Protocol
    resources: dict[str, object]
    tags: dict[str, str]
    exec_addr: str | None = None
    slots: int | None = None
    incarnation: str = ""


class Link:
    def __init__(
        self,
        servers: LeaderClient,
        registration: Registration,
        attempts: AttemptController,
        cluster: Path,
        first_seq: int,
    ) -> None:
        self._servers = servers
        self._registration = registration
        self._attempts = attempts
        self._log: Logger = structlog.get_logger()
        self._cluster_file = cluster
        self._cluster = cluster.read_text() if cluster.exists() else ""
        self._seq = first_seq
        self._term = 0
        self._heard = -1
        self._lost_after = 30.0
        self._is_registered = False
        self._is_full_due = True
        self._full_at = 0.0
        self._backoff_s = _BACKOFF_S[0]
        self._failing = ""
        self.is_leaving = False
        self.answered = asyncio.Event()  #: set with every answer of a server

    async def run(self) -> None:
        """For ever. Raises Superseded."""
        while True:
            try:
                if not self._is_registered:
                    await self._register()
                await self._sync()
            except Unreachable as error:
                await self._pause(str(error))

    async def _pause(self, why: str) -> None:
        if self._failing != why:
            self._log.warning("server not reached", why=why)
        self._failing = why
        await asyncio.sleep(self._backoff_s * random.uniform(0.8, 1.2))  # noqa: S311
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_S[1])

    def _reached(self) -> None:
        if self._failing:
            self._log.info("server reached", url=self._servers.leader)
        self._failing, self._backoff_s = "", _BACKOFF_S[0]
        self.answered.set()

    async def _register(self) -> None:
        if not self._servers.local_address:
            await self._servers.call("GET", "/healthz")
        address = self._registration.exec_addr or self._servers.local_address
        told = msgspec.structs.replace(self._registration, exec_addr=address)
        answer = await self._servers.call("POST", "/workers/register", _encode(told))
        if answer.status not in (200, 201):
            raise Unreachable(f"registration was refused: {_said(answer.body)}")
        self._is_registered = self._is_full_due = True
        self._reached()
        self._log.info("registered", worker=told.id, server=self._servers.leader, address=address)

    async def _sync(self) -> None:
        """One call, until it is answered or there is something else to say."""
        now = asyncio.get_running_loop().time()
        full = self._is_full_due or now >= self._full_at
        self._attempts.news.clear()
        said = self._attempts.reports.take(full=full)
        self._seq += 1
        seq, wait_s = self._seq, self._wait_s()
        request = SyncRequest(
            incarnation=self._registration.incarnation,
            seq=seq,
            term=self._term,
            full=full,
            tasks=said,
            wait=wait_s,
            heard=self._heard,
            leaving=self.is_leaving,
        )
        sent_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        reply = await self._exchange(request, wait_s)
        if reply is None:
            return
        self._reached()
        if full and not reply.full:
            self._full_at = now + _FULL_S
        self._heard, self._term, self._is_full_due = seq, reply.term, reply.full
        self._lost_after = reply.lost_after
        self._attempts.reports.heard(said)
        self._attempts.lease(Lease(sent_at, reply.lost_after))
        if self._attempts.obey(reply.tasks):
            with suppress(TimeoutError):
                async with asyncio.timeout(_OUTCOME_S):
                    await self._attempts.news.wait()

    def _wait_s(self) -> float:
        """How long the server may hold the call."""
        if self.is_leaving and not self.answered.is_set():
            return 0.0
        longest = _WAIT_S
        for grace in self._attempts.fences():
            left = (self._lost_after - grace / SECOND - _LEASE_SLACK_S) / 2
            longest = min(longest, max(left, 0.1))
        return longest * random.uniform(0.8, 1.0)  # noqa: S311

    async def _exchange(self, request: SyncRequest, wait_s: float) -> SyncReply | None:
        """None if there was news before the answer, or if the answer is not for us."""
        path = f"/workers/{quote(self._registration.id)}/sync"
        call = asyncio.create_task(
            self._servers.call("POST", path, _encode(request), seconds=wait_s + _LATE_S)
        )
        news = asyncio.create_task(self._attempts.news.wait())
        try:
            await asyncio.wait([call, news], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return None  # a new call takes the place of the one that is held
            answer = call.result()
        finally:
            news.cancel()
            call.cancel()
        if answer.status == 200:
            return self._for_us(self._read(answer.body))
        if answer.status == 409:
            raise Superseded(_said(answer.body))
        if answer.status == 404:
            self._is_registered = False
            return None
        raise Unreachable(f"{self._servers.leader} refused us: {_said(answer.body)}")

    def _read(self, body: bytes) -> SyncReply:
        try:
            return _decode(body)
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._servers.leader} is no server of ours: {error}") from None

    def _for_us(self, reply: SyncReply) -> SyncReply | None:
        if reply.cluster_id != self._cluster:
            if self._cluster and not self._attempts.is_empty:
                raise Unreachable(
                    f"{self._servers.leader} belongs to another cluster than the tasks that run"
                    " here; stop them first, or give this worker another state directory"
                )
            self._cluster, self._term = reply.cluster_id, 0
            self._cluster_file.write_text(reply.cluster_id)
        return reply if reply.term >= self._term else None


def _said(body: bytes) -> str:
    try:
        return _refusal(body).error.message
    except msgspec.MsgspecError:
        return body.decode(errors="replace")[:500]
