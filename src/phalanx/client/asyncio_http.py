"""HTTP for asyncio."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import httpx

T = TypeVar("T")


class AsyncioHttp:
    def __init__(self) -> None:
        self._clients: dict[ssl.SSLContext, httpx.AsyncClient] = {}

    async def send(
        self, request: httpx.Request, trusted: ssl.SSLContext, *, streamed: bool
    ) -> httpx.Response:
        if trusted not in self._clients:
            self._clients[trusted] = httpx.AsyncClient(verify=trusted)
        response = await self._clients[trusted].send(request, stream=streamed)
        if response.status_code >= 300:
            await response.aread()
        return response

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        async for data in response.aiter_bytes():
            yield data

    async def end(self, response: httpx.Response) -> None:
        await response.aclose()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def blocking(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
