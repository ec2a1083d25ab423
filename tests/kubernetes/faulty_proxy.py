"""A proxy in front of the API server that refuses, loses and cuts what a test tells it to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import ConfiguredCredentials
from tests.integration.server.waiting import pass_time
from tests.kubernetes.control_plane import ApiServer

Matches = Callable[[web.BaseRequest], bool]
Watcher = Callable[[web.BaseRequest, bytes], None]


def _ignore(_: web.BaseRequest, __: bytes) -> None:
    """Watch nothing."""


class FaultyProxy:
    """Forwards requests as they come. Each fault hits the next requests that match."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._refusals: list[tuple[Matches, web.Response]] = []
        self._losses: list[Matches] = []
        self._holds: list[Matches] = []
        self._delays: list[tuple[Matches, float]] = []
        self._repeats: list[Matches] = []
        self.repeats_events = False  #: every event of a watch is sent twice
        self._watches: set[asyncio.Transport] = set()
        #: Called with the request and its body before it is passed on, and before its answer is.
        #: They may raise another answer.
        self.on_request: Watcher = _ignore
        self.on_answer: Watcher = _ignore
        self.url = ""
        self.requests: list[web.BaseRequest] = []
        #: Those that the API server has got, and that are not answered yet; without watches.
        self.under_way: list[web.BaseRequest] = []

    @property
    def connection(self) -> ClusterConnection:
        return ClusterConnection(self.url, ConfiguredCredentials(token=self._api.token))

    def refuse(self, matches: Matches, response: web.Response) -> None:
        """Answer one request in place of the API server."""
        self._refusals.append((matches, response))

    def lose_answer(self, matches: Matches) -> None:
        """Pass one request on, and close the connection in place of an answer."""
        self._losses.append(matches)

    def hold(self, matches: Matches) -> None:
        """Neither answer nor pass on matching requests, until `release`."""
        self._holds.append(matches)

    def delay(self, matches: Matches, seconds: float) -> None:
        """Pass one request on later."""
        self._delays.append((matches, seconds))

    def repeat(self, matches: Matches) -> None:
        """Pass one request on twice, and answer with the second answer."""
        self._repeats.append(matches)

    @property
    def faults_left(self) -> int:
        """How many faults have hit no request yet."""
        waiting = (self._refusals, self._losses, self._delays, self._repeats)
        return sum(len(faults) for faults in waiting)

    def release(self) -> None:
        """Pass on new requests again. Those that are held stay so."""
        self._holds.clear()

    @property
    def open_watches(self) -> int:
        return len(self._watches)

    def cut_watches(self) -> None:
        """Break the connections of all watches, in the middle of whatever they send."""
        for transport in self._watches:
            transport.abort()
        self._watches.clear()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FaultyProxy"]:
        trust = ssl.create_default_context(cafile=str(self._api.ca))
        connector = aiohttp.TCPConnector(
            ssl=trust, limit=0, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED
        )
        for_ever = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=for_ever
        ) as session:
            self._session = session
            runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                self.cut_watches()
                await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        body = await request.read()
        self.on_request(request, body)
        if any(matches(request) for matches in self._holds):
            await asyncio.get_running_loop().create_future()
        for matches, refusal in self._refusals:
            if matches(request):
                self._refusals.remove((matches, refusal))
                return refusal
        for matches, seconds in self._delays:
            if matches(request):
                self._delays.remove((matches, seconds))
                await pass_time(seconds)
                break
        for matches in self._repeats:
            if matches(request):
                self._repeats.remove(matches)
                async with self._pass_on(request, body) as answer:
                    await answer.read()
                break
        return await self._answer(request, body)

    def _pass_on(
        self, request: web.BaseRequest, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.request(
            request.method,
            self._api.url + request.path_qs,
            data=body or None,
            headers={k: v for k, v in request.headers.items() if k.lower() != "host"},
        )

    async def _answer(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        if is_watch(request):
            async with self._pass_on(request, body) as answer:
                return await self._stream(request, answer)
        self.under_way.append(request)
        try:
            async with self._pass_on(request, body) as answer:
                answered = await answer.read()
        finally:
            self.under_way.remove(request)
        self.on_answer(request, body)
        for matches in self._losses:
            if matches(request):
                self._losses.remove(matches)
                _transport(request).abort()
        kept = ("Content-Type", "Retry-After")
        headers = {name: answer.headers[name] for name in kept if name in answer.headers}
        return web.Response(status=answer.status, body=answered, headers=headers)

    async def _stream(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status)
        response.enable_chunked_encoding()
        if request.transport is None:  # the client is gone
            return response
        transport = _transport(request)
        self._watches.add(transport)
        try:
            await response.prepare(request)
            rest = b""
            async for chunk in answer.content.iter_any():
                *events, rest = (rest + chunk).split(b"\n")
                copies = 2 if self.repeats_events else 1
                await response.write(b"".join((event + b"\n") * copies for event in events))
            await response.write_eof()
        except (ConnectionError, aiohttp.ClientError):
            pass
        finally:
            self._watches.discard(transport)
        return response


def is_watch(request: web.BaseRequest) -> bool:
    return "watch" in request.query


def _transport(request: web.BaseRequest) -> asyncio.Transport:
    assert isinstance(request.transport, asyncio.Transport)
    return request.transport
