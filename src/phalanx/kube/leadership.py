"""Leadership by a Lease: of several schedulers one acts.

The lease is renewed in a thread of its own, so that a long plan does not lose it, and it is
measured on this machine's clock. The clocks of other machines are not compared: the lease of
another scheduler has expired when it was not renewed for its duration while this one watched.
"""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import structlog

from phalanx.host.clock import boot_time
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError, ApiUnreachableError
from phalanx.kube.api.resources import LEASES
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.errors import ConnectionConfigError
from phalanx.kube.objects.lease import Lease, LeaseSpec

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


#: Name of the lease.
LEASE_NAME = "phalanx-scheduler"
#: Annotations of the lease: the names that its schedulers serve, and who led last.
SERVED_NAMES, LAST_LEADER = "phalanx.dev/scheduler-names", "phalanx.dev/last-leader"


class LeaseSettings(NamedTuple):
    namespace: str
    identity: str  #: unique among all schedulers, also among those of one host
    name: str = LEASE_NAME
    scheduler_names: tuple[str, ...] = ()  #: the names that the scheduler serves
    duration_s: int = 15
    retry_s: float = 2.0
    #: A leader sends nothing in the last part of its lease: a request may arrive late.
    guard_s: float = 5.0


class LeaseElection:
    """Takes the lease when it is free, and renews it. Its loop runs wherever `run` is awaited."""

    def __init__(
        self,
        client: ApiClient,
        settings: LeaseSettings,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._until_s = float("-inf")  #: of our lease
        self._seen: LeaseSpec | None = None
        self._seen_s = 0.0
        #: The leader whose standby this scheduler is, as far as the log tells.
        self._logged_leader = ""
        #: The leader before this one, and whether it gave the lease back.
        self.predecessor = ""
        self.was_given_back = False

    def may_act(self) -> bool:
        """Whether this scheduler leads, and its lease lasts long enough for a request.

        Callable from every thread.
        """
        return self._clock() < self._until_s - self._settings.guard_s

    @property
    def holder(self) -> str:
        """The last known holder of the lease; empty if there is none."""
        return self._seen.holder_identity if self._seen is not None else ""

    async def run(self, stop: asyncio.Event, on_change: Callable[[bool], None]) -> None:
        """Contend until stopped, then give the lease back. Reports the outcome of the first try,
        then every gain and loss of `may_act`."""
        led: bool | None = None
        try:
            while not stop.is_set():
                try:
                    async with asyncio.timeout(self._settings.duration_s / 3):
                        await self._contend()
                except (ApiStatusError, ApiUnreachableError, ConnectionConfigError) as error:
                    log.warning("lease not renewed", reason=str(error))
                except TimeoutError:
                    log.warning("lease not renewed", reason="no answer in time")
                if (leads := self.may_act()) != led:
                    led = leads
                    on_change(led)
                await _pause(stop, self._settings.retry_s)
        finally:
            if led:
                on_change(False)
        await self._give_back()

    async def _contend(self) -> None:
        """One look at the lease, and one write if it is ours or free."""
        settings = self._settings
        try:
            lease = await self._client.get(LEASES, settings.name, settings.namespace)
        except ApiStatusError as error:
            if not error.is_not_found:
                raise
            await self._write(None)
            return
        self._observe(lease.spec)
        is_ours = lease.spec.holder_identity == settings.identity
        if not is_ours:
            self._until_s = float("-inf")
        if is_ours or self._is_expired(lease.spec):
            await self._write(lease)
        else:
            self._log_standby(lease)

    def _log_standby(self, lease: Lease) -> None:
        """Log once for whom this scheduler stands by."""
        leader, settings = lease.spec.holder_identity, self._settings
        if leader == self._logged_leader:
            return
        self._logged_leader = leader
        log.info("standing by", leader=leader, identity=settings.identity)
        served = lease.metadata.annotations.get(SERVED_NAMES, "")
        if served and served != ",".join(settings.scheduler_names):
            log.warning(
                "the leader serves pods of other names",
                leader=leader,
                served=served,
                lease=f"{settings.namespace}/{settings.name}",
                cure="choose another --lease-namespace",
            )

    def _observe(self, spec: LeaseSpec) -> None:
        if spec != self._seen:
            self._seen, self._seen_s = spec, self._clock()

    def _is_expired(self, spec: LeaseSpec) -> bool:
        if not spec.holder_identity:
            return True
        return self._clock() >= self._seen_s + spec.lease_duration_seconds

    async def _write(self, lease: Lease | None) -> None:
        """Take or renew the lease. A conflict means that another scheduler was faster."""
        settings = self._settings
        began_s = self._clock()
        now = datetime.now(UTC)
        last = lease.spec if lease is not None else LeaseSpec()
        is_renewal = last.holder_identity == settings.identity
        spec = LeaseSpec(
            holder_identity=settings.identity,
            lease_duration_seconds=settings.duration_s,
            acquire_time=last.acquire_time if is_renewal else now,
            renew_time=now,
            lease_transitions=last.lease_transitions + (lease is not None and not is_renewal),
        )
        try:
            written = await self._put(lease, spec)
        except ApiStatusError as error:
            if not error.is_conflict:
                raise
            self._until_s = float("-inf")
            return
        if not is_renewal:
            annotations = {} if lease is None else lease.metadata.annotations
            self.predecessor = last.holder_identity or annotations.get(LAST_LEADER, "")
            self.was_given_back = not last.holder_identity
            self._logged_leader = ""
        self._observe(written.spec)
        self._until_s = began_s + settings.duration_s

    async def _put(self, lease: Lease | None, spec: LeaseSpec) -> Lease:
        settings = self._settings
        annotations = {LAST_LEADER: settings.identity}
        if settings.scheduler_names:
            annotations[SERVED_NAMES] = ",".join(settings.scheduler_names)
        metadata: dict[str, object] = {
            "name": settings.name,
            "namespace": settings.namespace,
            "annotations": annotations,
        }
        body = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": metadata,
            "spec": _with_micros(spec),
        }
        if lease is None:
            return await self._client.create(LEASES, body, settings.namespace)
        metadata["resourceVersion"] = lease.metadata.resource_version
        return await self._client.replace(LEASES, body, settings.name, settings.namespace)

    async def _give_back(self) -> None:
        """Let another scheduler lead at once. Without an answer the lease expires by itself."""
        if self._clock() >= self._until_s:
            return
        self._until_s = float("-inf")
        settings = self._settings
        try:
            lease = await self._client.get(LEASES, settings.name, settings.namespace)
            if lease.spec.holder_identity == settings.identity:
                spec = msgspec.structs.replace(
                    lease.spec, holder_identity="", lease_duration_seconds=1
                )
                await self._put(lease, spec)
        except (ApiStatusError, ApiUnreachableError, ConnectionConfigError) as error:
            log.warning("lease not given back", reason=str(error))


def _with_micros(spec: LeaseSpec) -> dict[str, object]:
    """The spec as JSON. The API server reads times of leases only with six decimals."""
    times = {"acquireTime": spec.acquire_time, "renewTime": spec.renew_time}
    written: dict[str, object] = {
        key: time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for key, time in times.items()
        if time is not None
    }
    return {**msgspec.to_builtins(spec), **written}


class LeaseThread:
    """An election in a thread with an event loop and a client of its own."""

    def __init__(
        self,
        connection: Callable[[], ClusterConnection],
        settings: LeaseSettings,
        on_change: Callable[[bool], None],
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._on_change = on_change
        self._election: LeaseElection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._is_started.wait()

    def may_act(self) -> bool:
        return self._election is not None and self._election.may_act()

    @property
    def holder(self) -> str:
        return self._election.holder if self._election is not None else ""

    @property
    def origin(self) -> dict[str, str]:
        """After whom this scheduler leads, and why, for its log."""
        election = self._election
        if election is None or not election.predecessor:
            return {}
        why = "gave the lease back" if election.was_given_back else "did not renew the lease"
        return {"after": election.predecessor, "which": why}

    def stop(self) -> None:
        """Give the lease back, and end the thread."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with ApiClient(self._connection()) as client:
                self._election = LeaseElection(client, self._settings)
                self._is_started.set()
                await self._election.run(self._stop, self._on_change)
        finally:
            self._is_started.set()


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
