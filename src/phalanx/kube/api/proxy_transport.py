"""Requests through a proxy."""

import aiohttp
from aiohttp.connector import NEEDS_CLEANUP_CLOSED
from multidict import CIMultiDict
from yarl import URL

from phalanx.kube.api.connection_fault import connection_fault
from phalanx.kube.api.transport import (
    IDLE_S,
    ClientHeaders,
    OnData,
    TlsContexts,
    WireAnswer,
    WireRequest,
)
from phalanx.kube.connection.cluster_connection import ClusterConnection
from phalanx.kube.connection.credentials import Credential


class ProxyTransport:
    def __init__(self, connection: ClusterConnection, user_agent: str) -> None:
        self._connection = connection
        self._headers = ClientHeaders(connection, user_agent)
        self._tls = TlsContexts(connection)
        # Connections that wait for the end of TLS are closed with it where Python does not do so.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=IDLE_S, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED
            )
        )

    async def exchange(
        self, request: WireRequest, credential: Credential, timeout_s: float
    ) -> WireAnswer:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with await self._send(request, credential, timeout) as response:
                return await _whole(response)
        except aiohttp.ClientError as error:
            raise ConnectionError(connection_fault(error)) from error

    async def stream(
        self, request: WireRequest, credential: Credential, on_data: OnData, silence_s: float
    ) -> WireAnswer:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=silence_s)
        try:
            async with await self._send(request, credential, timeout) as response:
                if response.status >= 400:
                    return await _whole(response)
                async for chunk in response.content.iter_any():
                    on_data(chunk)
                return WireAnswer(response.status, b"")
        except aiohttp.ClientError as error:
            raise ConnectionError(connection_fault(error)) from error

    async def close(self) -> None:
        await self._session.close()

    async def _send(
        self, request: WireRequest, credential: Credential, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = CIMultiDict(self._headers.of(credential))
        headers["Accept"] = request.accept
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        context = self._tls.context(credential)
        return await self._session.request(
            request.method,
            URL(self._connection.server + request.target, encoded=True),
            data=request.body,
            headers=headers,
            timeout=timeout,
            ssl=True if context is None else context,
            server_hostname=self._connection.tls_server_name,
            proxy=self._connection.proxy,
            allow_redirects=False,
        )


async def _whole(response: aiohttp.ClientResponse) -> WireAnswer:
    retry_after = response.headers.get("Retry-After", "")
    return WireAnswer(response.status, await response.read(), retry_after)
