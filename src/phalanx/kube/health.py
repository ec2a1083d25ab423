"""Health and metrics of a scheduler process, served over HTTP."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from phalanx.kube.metrics import SchedulerMetrics
from phalanx.kube.scheduler import KubeScheduler


class HealthServer:
    """Serves `/healthz` (the process runs), `/readyz` (the cluster has been read), `/metrics`."""

    def __init__(self, scheduler: KubeScheduler, is_leading: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._registry = CollectorRegistry()
        self._registry.register(SchedulerMetrics(scheduler, is_leading))
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._scheduler.is_ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the cluster has not been read yet\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )
