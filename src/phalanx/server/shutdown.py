"""End the open requests when the server stops: held calls get an error, streams end.

Accepted commands have been answered by then; the requests that are left only wait.
"""

import asyncio
from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from phalanx.wire.errors import ErrorBody, ErrorInfo

#: How long a response that is being sent has to finish.
_FINISH_S = 0.25

_STOPPING = msgspec.json.encode(
    ErrorBody(ErrorInfo("stopping", "this server is shutting down; try again"))
)


class Shutdown:
    """Wraps an application; `end_requests` ends every request that is open in it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[asyncio.Task[Any]] = set()
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("bug: a request without an asyncio task")
        sent: list[str] = []

        async def send_and_note(message: Message) -> None:
            sent.append(message["type"])
            await send(message)

        self._open.add(task)
        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if not self._is_over:
                raise
            await _end(send, has_begun=bool(sent))
        finally:
            self._open.discard(task)

    async def end_requests(self) -> None:
        if self._open:
            await asyncio.wait(self._open, timeout=_FINISH_S)
        self._is_over = True
        for task in self._open:
            task.cancel()


async def _end(send: Send, *, has_begun: bool) -> None:
    if not has_begun:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(_STOPPING)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
    body = b"" if has_begun else _STOPPING
    await send({"type": "http.response.body", "body": body, "more_body": False})
