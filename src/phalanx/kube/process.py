"""A scheduler process: leads or stands by until SIGTERM, then gives its lease back."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog
import uvloop

from phalanx.host.interpreter import tune_interpreter
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.errors import ConnectionConfigError
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.health import HealthServer
from phalanx.kube.leadership import LeaseSettings, LeaseThread
from phalanx.kube.node_option import NodeOptionError, check_node_option
from phalanx.kube.rights import check_rights
from phalanx.kube.scheduler import KubeScheduler, SchedulerSettings

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class CannotSchedule(Exception):  # noqa: N818
    """The scheduler cannot start; the message says why."""


class ProcessSettings(NamedTuple):
    scheduler: SchedulerSettings
    kubeconfig: Path | None
    context: str | None
    lease_namespace: str | None  #: None: the namespace of the connection
    identity: str
    listen: tuple[str, int] | None  #: where health and metrics are served


def run(settings: ProcessSettings) -> int:
    """Schedule until a signal; the exit status. Raises CannotSchedule, MissingRightsError, or
    ApiUnreachableError."""
    tune_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings))


async def _run(settings: ProcessSettings) -> int:
    def connection() -> ClusterConnection:
        return find_connection(settings.kubeconfig, settings.context)

    try:
        async with ApiClient(connection(), user_agent="phalanx-scheduler") as client:
            await client.request("GET", "/version")
            await _check(settings, client)
            return await _schedule(settings, client, connection)
    except (ConnectionConfigError, NodeOptionError, ApiStatusError) as error:
        raise CannotSchedule(str(error)) from error
    except OSError as error:
        host, port = settings.listen or ("", 0)
        raise CannotSchedule(f"cannot listen on {host}:{port}: {error.strerror}") from error


async def _check(settings: ProcessSettings, client: ApiClient) -> None:
    """Raise MissingRightsError or NodeOptionError if the scheduler could only fail."""
    await check_rights(client, settings.lease_namespace or client.connection.namespace)
    selector = settings.scheduler.node_labels
    if selector and not await check_node_option(client, selector):
        log.warning("no node has the labels of --nodes", nodes=selector)


async def _schedule(
    settings: ProcessSettings, client: ApiClient, connection: Callable[[], ClusterConnection]
) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    namespace = settings.lease_namespace or client.connection.namespace
    names = settings.scheduler.scheduler_names
    lease_settings = LeaseSettings(namespace, settings.identity, scheduler_names=names)

    has_tried = asyncio.Event()

    def on_change(is_leading: bool) -> None:
        if is_leading:
            log.info("leading", identity=settings.identity, **lease.origin)
        elif has_tried.is_set():
            log.info("not leading any more", identity=settings.identity)
        loop.call_soon_threadsafe(scheduler.leadership_changed)
        loop.call_soon_threadsafe(has_tried.set)

    async def schedule() -> None:
        # What a leader lists after it has the lease need not be listed again.
        await has_tried.wait()
        await scheduler.run()

    lease = LeaseThread(connection, lease_settings, on_change)
    scheduler = KubeScheduler(client, settings.scheduler, lease.may_act)
    health = HealthServer(scheduler, lease.may_act)
    if settings.listen is not None:
        await health.start(*settings.listen)
    log.info("scheduling", server=client.connection.server, names=",".join(names))
    lease.start()
    scheduling = asyncio.create_task(schedule())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([scheduling, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Nothing is sent any more when the lease is given back.
        for task in (scheduling, stopping):
            task.cancel()
        await asyncio.gather(scheduling, stopping, return_exceptions=True)
        await asyncio.to_thread(lease.stop)
        await health.stop()
    if not scheduling.cancelled():
        scheduling.result()
    return 0
