"""The copy of a collection equals the API server's, whatever happens to its watch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from aiohttp import web

from phalanx.kube.api import client as client_module
from phalanx.kube.api import reflector as reflector_module
from phalanx.kube.api import retries
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.reflector import Change, Reflector, Selection
from phalanx.kube.api.resources import PODS, Resource, pod_groups
from phalanx.kube.objects.pod import KubePod
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.custom_resources import POD_GROUP_CRD, install
from tests.kubernetes.faulty_proxy import FaultyProxy, is_watch
from tests.kubernetes.pool import Pool

GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


class Copy:
    """A reflector of the pool's pods, with everything that it reported."""

    def __init__(self, client: ApiClient, pool: Pool, resource: Resource[KubePod] = PODS) -> None:
        self.changes: list[Change[KubePod]] = []
        self.reflector = Reflector(
            client, resource, self.changes.extend, Selection(namespace=pool.namespace)
        )

    @property
    def names(self) -> list[str]:
        """The names by the reported changes alone, which must agree with the copy."""
        by_uid: dict[str, KubePod] = {}
        for before, after in self.changes:
            if before is not None:
                del by_uid[before.metadata.uid]
            if after is not None:
                assert after.metadata.uid not in by_uid
                by_uid[after.metadata.uid] = after
        assert by_uid == {pod.metadata.uid: pod for pod in self.reflector.objects.values()}
        return sorted(pod.metadata.name for pod in by_uid.values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Copy"]:
        task = asyncio.create_task(self.reflector.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.reflector.synced.wait()
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def until(self, holds: Callable[[], bool]) -> None:
        async def ask() -> bool:
            return holds()

        await eventually(ask, PATIENCE_S, lambda: f"the copy has {self.names}")

    async def has(self, *names: str) -> None:
        await self.until(lambda: self.names == sorted(names))


@asynccontextmanager
async def copy_through(proxy: FaultyProxy, pool: Pool) -> AsyncIterator[Copy]:
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        copy = Copy(client, pool)
        async with copy.running():
            yield copy


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE_S", 0.01)


async def test_pods_are_copied_page_by_page_and_then_watched(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_SIZE", 2)
    for number in range(5):
        await pool.create_pod(f"p{number}", labels={"n": str(number)})
    async with Copy(pool.api, pool).running() as copy:
        assert copy.names == ["p0", "p1", "p2", "p3", "p4"]
        await pool.create_pod("p5")
        await pool.api.delete(PODS, "p0", pool.namespace, grace_s=0)
        await pool.annotate("p1", {"a": "b"})
        await copy.has("p1", "p2", "p3", "p4", "p5")
        annotated = copy.reflector.objects[f"{pool.namespace}/p1"]
        await copy.until(
            lambda: (
                copy.reflector.objects[f"{pool.namespace}/p1"].metadata.annotations == {"a": "b"}
            )
        )
        assert annotated.metadata.labels == {"n": "1"}
        assert (copy.reflector.lists, copy.reflector.watches) == (1, 1)


async def test_a_pod_that_leaves_the_selection_is_reported_as_deleted(pool: Pool) -> None:
    await pool.create_pod("ends")
    await pool.create_pod("stays")
    copy = Copy(pool.api, pool)
    copy.reflector._selection = Selection(
        pool.namespace, fields="status.phase!=Succeeded,status.phase!=Failed"
    )
    async with copy.running():
        await pool.set_status("ends", {"phase": "Failed"})
        await copy.has("stays")


async def test_a_cut_watch_goes_on_where_it_was(api_server: ApiServer, pool: Pool) -> None:
    proxy = FaultyProxy(api_server)
    async with copy_through(proxy, pool) as copy:
        for number in range(5):
            await pool.create_pod(f"p{number}")
            await copy.until(lambda: proxy.open_watches > 0)
            proxy.cut_watches()
        await copy.has("p0", "p1", "p2", "p3", "p4")
        assert copy.reflector.lists == 1
        assert copy.reflector.watches > 1


@pytest.mark.parametrize("form", ["status", "event"])
async def test_an_expired_version_leads_to_a_list_without_a_gap(
    api_server: ApiServer, pool: Pool, form: str
) -> None:
    """Deleted, replaced and new pods are all reported, though no watch delivered them."""
    for name in ("deleted", "kept", "replaced"):
        await pool.create_pod(name)
    proxy = FaultyProxy(api_server)
    async with copy_through(proxy, pool) as copy:
        await copy.until(lambda: proxy.open_watches == 1)
        for _ in range(3):
            proxy.refuse(is_watch, web.Response(status=503, text="maintenance"))
        proxy.refuse(is_watch, _gone(form))
        proxy.cut_watches()
        for name in ("deleted", "replaced"):
            await pool.api.delete(PODS, name, pool.namespace, grace_s=0)
        await pool.create_pod("replaced")
        await pool.create_pod("new")
        await copy.has("kept", "new", "replaced")
        await copy.until(lambda: copy.reflector.lists == 2)
        assert copy.names == ["kept", "new", "replaced"]


def _gone(form: str) -> web.Response:
    if form == "status":
        return web.json_response(GONE, status=410)
    event = msgspec.json.encode({"type": "ERROR", "object": GONE})
    return web.Response(body=event + b"\n", content_type="application/json")


async def test_pages_that_expire_are_read_again_at_once(
    api_server: ApiServer, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "PAGE_SIZE", 2)
    for number in range(5):
        await pool.create_pod(f"p{number}")
    proxy = FaultyProxy(api_server)
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        proxy.refuse(
            lambda request: "continue" in request.query, web.json_response(GONE, status=410)
        )
        async with Copy(client, pool).running() as copy:
            assert copy.names == ["p0", "p1", "p2", "p3", "p4"]
    lists = [request.query for request in proxy.requests if not is_watch(request)]
    assert ["limit" in query for query in lists] == [True, True, False]


async def test_faults_of_the_server_are_waited_out(api_server: ApiServer, pool: Pool) -> None:
    await pool.create_pod("p")
    proxy = FaultyProxy(api_server)
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        for status in (500, 429, 503):
            proxy.refuse(lambda request: not is_watch(request), web.Response(status=status))
        proxy.lose_answer(lambda request: not is_watch(request))
        async with Copy(client, pool).running() as copy:
            assert copy.names == ["p"]


async def test_catching_up_sees_what_was_written_before(api_server: ApiServer, pool: Pool) -> None:
    proxy = FaultyProxy(api_server)
    async with copy_through(proxy, pool) as copy:
        await pool.create_pod("p")
        await copy.reflector.catch_up()
        assert copy.names == ["p"]


async def test_catching_up_in_the_middle_of_a_list_lists_again(
    api_server: ApiServer, pool: Pool
) -> None:
    proxy = FaultyProxy(api_server)
    catching_up: list[asyncio.Task[None]] = []

    def answered(request: web.BaseRequest, _: bytes) -> None:
        if not is_watch(request) and not catching_up:
            catching_up.append(asyncio.create_task(copy.reflector.catch_up()))

    proxy.on_answer = answered
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        copy = Copy(client, pool)
        async with copy.running(), asyncio.timeout(PATIENCE_S):
            await catching_up[0]
        assert copy.reflector.lists == 2


async def test_an_object_of_an_unexpected_form_is_left_out_with_its_reason(pool: Pool) -> None:
    """One PodGroup with a text for its specification cannot hide the others."""
    await install(pool.api, POD_GROUP_CRD)
    groups = pod_groups("scheduling.phalanx.test", "v1alpha1")
    good = {"apiVersion": groups.api_version, "kind": "PodGroup", "metadata": {"name": "good"}}
    bad = {**good, "metadata": {"name": "bad"}, "spec": "three"}
    await pool.api.create(groups, good, pool.namespace)
    await pool.api.request("POST", groups.path(pool.namespace), bad)
    changes: list[object] = []
    reflector = Reflector(pool.api, groups, changes.extend, Selection(namespace=pool.namespace))
    task = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await reflector.synced.wait()
        assert list(reflector.objects) == [f"{pool.namespace}/good"]
        assert "spec" in reflector.unreadable[f"{pool.namespace}/bad"]
        body = {"spec": {"minMember": 3}}
        await pool.api.patch(groups.path(pool.namespace, "bad"), body)

        async def is_read() -> bool:
            return f"{pool.namespace}/bad" in reflector.objects

        await eventually(is_read, PATIENCE_S)
        assert not reflector.unreadable
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_silent_watch_is_opened_anew(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "WATCH_SILENCE_S", 0.2)
    async with ApiClient(pool.api.connection) as client, Copy(client, pool).running() as copy:
        await copy.until(lambda: copy.reflector.watches >= 3)
        assert copy.reflector.lists == 1
