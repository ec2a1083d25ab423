"""The sync loop: registers the worker, reports to the server, and receives its instructions.

The link has no state that the spawner does not have too, so it can exit and start again at any
time.
"""

import asyncio
import random
from urllib.parse import quote

import msgspec
import structlog

from phalanx.agent.link.controller import AttemptController
from phalanx.agent.link.leader_client import CredentialRefused, LeaderClient, Unreachable
from phalanx.agent.link.membership import Membership
from phalanx.agent.state_dir import StateDir
from phalanx.agent.task_files import read_short
from phalanx.core.model import Limit, Protocol
from phalanx.core.time_units import SECOND
from phalanx.host.clock import boot_time
from phalanx.host.file_replacement import replace_file
from phalanx.wire.errors import error_message
from phalanx.wire.sync import SyncReply, SyncRequest

Logger = structlog.typing.FilteringBoundLogger

#: How long the server may hold a sync, and how much later its reply may arrive.
_WAIT_S = 10.0
_REPLY_SLACK_S = 5.0
#: The interval of full inventories.
_INVENTORY_S = 60.0
#: After an instruction to start an attempt, the next sync waits this long for its first report:
#: on a busy machine a start takes many milliseconds, and a call without a report would be wasted.
_FIRST_REPORT_S = 0.04
_BACKOFF_S = (0.05, 1.0)
#: The longest pause after the server refused the worker's credential or join token.
_REFUSED_BACKOFF_S = 30.0
#: With fenced attempts a worker syncs at least twice in the time that is left of the lease before
#: they must begin to stop. This margin covers slow answers.
_FENCED_SYNC_MARGIN_S = 5.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SyncReply).decode


class Superseded(Exception):  # noqa: N818
    """Another agent has registered under this worker's name."""


class CredentialRevoked(Exception):  # noqa: N818
    """An admin has revoked this worker's credential."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The worker as it registers with the server."""

    id: str
    protocol: Protocol
    resources: dict[str, object]
    tags: dict[str, str]
    exec_addr: str | None = None
    slots: int | None = None
    incarnation: str = ""
    limits: tuple[Limit, ...] = ()  #: the limits of tasks that this machine enforces


class Link:
    def __init__(  # noqa: PLR0913, PLR0917
        self,
        server: LeaderClient,
        membership: Membership,
        registration: Registration,
        controller: AttemptController,
        state_dir: StateDir,
        first_seq: int,
    ) -> None:
        self._server = server
        self._membership = membership
        self._registration = registration
        self._path = f"/workers/{quote(registration.id)}/sync"
        self._controller = controller
        self._log: Logger = structlog.get_logger()
        self._cluster_id_file = state_dir.cluster_id_file
        self._cluster_id = read_short(state_dir.cluster_id_file)
        self._seq = first_seq
        self._term = 0
        self._last_answered_seq = -1
        self._lost_after_s = 30.0
        self._is_registered = False
        self._is_inventory_due = True
        self._inventory_at = 0.0
        self._backoff_s = _BACKOFF_S[0]
        self._last_error = ""
        self.is_leaving = False
        self.answered = asyncio.Event()  #: set with every answer of a server

    async def run(self) -> None:
        """Sync until cancelled. Raises Superseded or CredentialRevoked."""
        while True:
            try:
                if not self._is_registered:
                    await self._membership.ensure(self._server)
                    await self._register()
                await self._sync()
            except CredentialRefused as error:
                if error.is_revoked:
                    raise CredentialRevoked(str(error)) from None
                self._is_registered = False
                message = self._membership.refused(error)
                await self._back_off("refused by server", message, _REFUSED_BACKOFF_S)
            except Unreachable as error:
                await self._back_off("cannot reach server", str(error), _BACKOFF_S[1])

    async def _back_off(self, event: str, error: str, longest_s: float) -> None:
        if self._last_error != error:
            self._log.warning(event, error=error)
        self._last_error = error
        await asyncio.sleep(self._backoff_s * random.uniform(0.8, 1.2))  # noqa: S311
        self._backoff_s = min(self._backoff_s * 2, longest_s)

    def _reached(self) -> None:
        if self._last_error:
            self._log.info("reached server", url=self._server.leader)
        self._last_error, self._backoff_s = "", _BACKOFF_S[0]
        self.answered.set()

    async def _register(self) -> None:
        if not self._server.local_address:
            await self._server.call("GET", "/healthz")
        address = self._registration.exec_addr or self._server.local_address
        registration = msgspec.structs.replace(self._registration, exec_addr=address)
        reply = await self._server.call("POST", "/workers/register", _encode(registration))
        if reply.status not in (200, 201):
            raise Unreachable(f"the server refused the registration: {error_message(reply.body)}")
        self._is_registered = self._is_inventory_due = True
        self._reached()
        self._log.info(
            "registered", worker=registration.id, server=self._server.leader, address=address
        )

    async def _sync(self) -> None:
        """Make one call, until it is answered or there is something new to report."""
        now = asyncio.get_running_loop().time()
        full = self._is_inventory_due or now >= self._inventory_at
        reports = self._controller.reports
        sent = reports.to_send(full=full)
        self._seq += 1
        seq, wait_s = self._seq, self._wait_s()
        request = SyncRequest(
            incarnation=self._registration.incarnation,
            seq=seq,
            term=self._term,
            full=full,
            tasks=sent,
            wait=wait_s,
            heard=self._last_answered_seq,
            leaving=self.is_leaving,
        )
        sent_at = boot_time()
        reply = await self._exchange(request, wait_s)
        if reply is None:
            return
        self._reached()
        if full and not reply.full:
            self._inventory_at = now + _INVENTORY_S
        self._last_answered_seq, self._term, self._is_inventory_due = seq, reply.term, reply.full
        self._lost_after_s = reply.lost_after
        self._controller.checkpoints.limit_bytes = reply.checkpoint_limit
        reports.acknowledge(sent)
        self._controller.lease.renew(sent_at, reply.lost_after)
        if self._controller.follow(reply.tasks):
            loop = asyncio.get_running_loop()
            timer = loop.call_later(_FIRST_REPORT_S, reports.ready.set)
            try:
                await reports.ready.wait()
            finally:
                timer.cancel()

    def _wait_s(self) -> float:
        """How long the server may hold the call."""
        if self.is_leaving and not self.answered.is_set():
            return 0.0
        longest = _WAIT_S
        for grace in self._controller.attempts.fence_graces():
            of_lease = (self._lost_after_s - grace / SECOND - _FENCED_SYNC_MARGIN_S) / 2
            longest = min(longest, max(of_lease, 0.1))
        return longest * random.uniform(0.8, 1.0)  # noqa: S311

    async def _exchange(self, request: SyncRequest, wait_s: float) -> SyncReply | None:
        """The reply, or None if a new report came first or the reply does not apply."""
        body, timeout_s = _encode(request), wait_s + _REPLY_SLACK_S
        reports = self._controller.reports
        try:
            async with reports.hold():
                reply = await self._server.call("POST", self._path, body, timeout_s=timeout_s)
        except TimeoutError:
            return None  # the next call replaces the one that the server holds
        finally:
            reports.release()
        if reply.status == 200:
            return self._accepted(self._decode(reply.body))
        if reply.status == 409:
            raise Superseded(error_message(reply.body))
        if reply.status == 404:
            self._is_registered = False
            return None
        raise Unreachable(f"{self._server.leader} refused the sync: {error_message(reply.body)}")

    def _decode(self, body: bytes) -> SyncReply:
        try:
            return _decode(body)
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._server.leader} is not a Phalanx server: {error}") from None

    def _accepted(self, reply: SyncReply) -> SyncReply | None:
        """The reply, or None if it is of an earlier leader. Raises Unreachable."""
        if reply.cluster_id != self._cluster_id:
            if self._cluster_id and not self._controller.is_empty:
                raise Unreachable(
                    f"{self._server.leader} belongs to another cluster than the tasks on this"
                    " worker; stop the tasks first, or start this worker with another --state-dir"
                )
            self._save_cluster_id(reply.cluster_id)
            self._cluster_id, self._term = reply.cluster_id, 0
        return reply if reply.term >= self._term else None

    def _save_cluster_id(self, cluster_id: str) -> None:
        """Save it before any instruction is followed. Raises Unreachable."""
        try:
            replace_file(self._cluster_id_file, cluster_id.encode(), durable=False)
        except OSError as error:
            raise Unreachable(f"this worker cannot write its state directory: {error}") from None
