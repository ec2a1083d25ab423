"""Letting everybody go when the server stops: held calls are told so, streams end.

What was accepted has been answered by then; whoever is still here only waits.
"""

import asyncio
from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from phalanx.wire.errors import ErrorBody, ErrorInfo

#: How long an answer that is under way has to leave by itself.
_MOMENT_S = 0.25

_STOPPING = msgspec.json.encode(
    ErrorBody(ErrorInfo("stopping", "this server is stopping; ask another one, or ask again"))
)


class Shutdown:
    """Wraps an application, and can end every request that is open in it."""

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
            raise AssertionError("bug: a request outside of any task")
        sent: list[str] = []

        async def remember(message: Message) -> None:
            sent.append(message["type"])
            await send(message)

        self._open.add(task)
        try:
            await self._app(scope, receive, remember)
        except asyncio.CancelledError:
            if not self._is_over:
                raise
            await _say_goodbye(send, has_begun=bool(sent))
        finally:
            self._open.discard(task)

    async def dismiss(self) -> None:
        if self._open:
            await asyncio.wait(self._open, timeout=_MOMENT_S)
        self._is_over = True
        for task in self._open:
            task.cancel()


async def _say_goodbye(send: Send, *, has_begun: bool) -> None:
    if not has_begun:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(_STOPPING)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
    body = b"" if has_begun else _STOPPING
    await send({"type": "http.response.body", "body": body, "more_body": False})
