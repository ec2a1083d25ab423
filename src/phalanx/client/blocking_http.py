"""HTTP with calls that block. The coroutines of this `Http` never suspend."""

import ssl
import time
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import httpx

T = TypeVar("T")


class BlockingHttp:
    def __init__(self) -> None:
        self._clients: dict[ssl.SSLContext, httpx.Client] = {}

    async def send(
        self, request: httpx.Request, trusted: ssl.SSLContext, *, streamed: bool
    ) -> httpx.Response:
        if trusted not in self._clients:
            self._clients[trusted] = httpx.Client(verify=trusted)
        response = self._clients[trusted].send(request, stream=streamed)
        if response.status_code >= 300:
            response.read()
        return response

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        for data in response.iter_bytes():
            yield data

    async def end(self, response: httpx.Response) -> None:
        response.close()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def blocking(self, function: Callable[[], T]) -> T:
        return function()

    async def close(self) -> None:
        for client in self._clients.values():
            client.close()
