"""Of several schedulers one leads, by the clock of each."""

import asyncio
import threading

import pytest
from aiohttp import web

from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import LEASES
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.leadership import LeaseElection, LeaseSettings, LeaseThread
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.faulty_proxy import FaultyProxy
from tests.kubernetes.pool import Pool


class Contender(LeaseElection):
    """An election with a clock that the test moves. Clocks of contenders have nothing in common."""

    def __init__(self, client: ApiClient, namespace: str, identity: str, now_s: float) -> None:
        self.now_s = now_s
        super().__init__(client, LeaseSettings(namespace, identity), lambda: self.now_s)

    async def contend(self) -> bool:
        await self._contend()
        return self.may_act()


@pytest.fixture
def ann(pool: Pool) -> Contender:
    return Contender(pool.api, pool.namespace, "ann", 1000)


@pytest.fixture
def bob(pool: Pool) -> Contender:
    return Contender(pool.api, pool.namespace, "bob", 7)


async def test_the_lease_is_taken_over_only_after_it_was_not_renewed_for_its_duration(
    ann: Contender, bob: Contender
) -> None:
    assert await ann.contend()
    assert not await bob.contend()
    bob.now_s += 14
    await ann.contend()
    assert not await bob.contend()  # and sees the renewal
    bob.now_s += 14
    assert not await bob.contend()
    bob.now_s += 1
    assert await bob.contend()
    assert bob.holder == "bob"
    # The first leader's clock stood still: it learns of the loss when it renews.
    assert ann.may_act()
    assert not await ann.contend()
    assert ann.holder == "bob"


async def test_a_leader_sends_nothing_in_the_last_seconds_of_its_lease(ann: Contender) -> None:
    await ann.contend()
    ann.now_s += 9.9
    assert ann.may_act()
    ann.now_s += 0.1
    assert not ann.may_act()
    assert await ann.contend()


async def test_a_lease_without_an_answer_counts_from_before_the_request(
    api_server: ApiServer, pool: Pool
) -> None:
    proxy = FaultyProxy(api_server)
    async with proxy.serving(), ApiClient(proxy.connection) as client:
        ann = Contender(client, pool.namespace, "ann", 0)
        assert await ann.contend()
        proxy.refuse(lambda request: request.method == "PUT", web.Response(status=500))
        ann.now_s = 9
        with pytest.raises(ApiStatusError):
            await ann.contend()
        assert ann.may_act()
        ann.now_s = 10
        assert not ann.may_act()


async def test_of_two_that_see_an_expired_lease_one_gets_it(
    pool: Pool, ann: Contender, bob: Contender
) -> None:
    first = Contender(pool.api, pool.namespace, "first", 0)
    await first.contend()
    for contender in (ann, bob):
        await contender.contend()
        contender.now_s += 15
    led = await asyncio.gather(ann.contend(), bob.contend())
    assert sorted(led) == [False, True]


async def test_a_scheduler_that_stops_gives_its_lease_back(
    api_server: ApiServer, pool: Pool, bob: Contender
) -> None:
    reports: list[bool] = []
    leads = threading.Event()

    def report(is_leading: bool) -> None:
        reports.append(is_leading)
        leads.set()

    thread = LeaseThread(
        lambda: find_connection(api_server.kubeconfig),
        LeaseSettings(pool.namespace, "thread", duration_s=600),
        report,
    )
    thread.start()
    try:
        assert await asyncio.to_thread(leads.wait, PATIENCE_S)
        assert thread.may_act()
        assert thread.holder == "thread"
        assert not await bob.contend()
    finally:
        await asyncio.to_thread(thread.stop)
    assert not thread.may_act()
    assert reports == [True, False]
    assert await bob.contend()
    lease = await pool.api.get(LEASES, "phalanx-scheduler", pool.namespace)
    assert lease.spec.lease_transitions == 1


async def test_the_lease_is_renewed_while_the_event_loop_is_busy(
    api_server: ApiServer, pool: Pool
) -> None:
    leads = threading.Event()
    settings = LeaseSettings(pool.namespace, "busy", retry_s=0.05)
    thread = LeaseThread(
        lambda: find_connection(api_server.kubeconfig), settings, lambda _: leads.set()
    )
    thread.start()
    try:
        assert leads.wait(PATIENCE_S)  # blocks the event loop, not the thread
        first = await pool.api.get(LEASES, settings.name, pool.namespace)

        async def is_renewed() -> bool:
            lease = await pool.api.get(LEASES, settings.name, pool.namespace)
            return lease.spec.renew_time != first.spec.renew_time

        await eventually(is_renewed, PATIENCE_S)
    finally:
        await asyncio.to_thread(thread.stop)
