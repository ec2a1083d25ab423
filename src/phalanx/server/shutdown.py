"""End the open requests when the server stops: held calls get an error, streams end.

Accepted commands have been answered by then, so most requests that are left only wait. A request
that changes something may have been interrupted after its change, and its answer says so.
"""

import asyncio
from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from phalanx.wire.errors import ErrorBody, ErrorInfo, unknown_outcome

#: How long a response that is being sent has to finish.
_FINISH_S = 0.25

_READS = ("GET", "HEAD", "OPTIONS")
_WHY = "this server is shutting down"
_STOPPING = msgspec.json.encode(ErrorBody(ErrorInfo("stopping", f"{_WHY}; try again")))
_INTERRUPTED = msgspec.json.encode(ErrorBody(unknown_outcome(_WHY)))


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
            await _end(send, scope["method"], has_begun=bool(sent))
        finally:
            self._open.discard(task)

    async def end_requests(self) -> None:
        if self._open:
            await asyncio.wait(self._open, timeout=_FINISH_S)
        self._is_over = True
        for task in self._open:
            task.cancel()


async def _end(send: Send, method: str, *, has_begun: bool) -> None:
    status, body = (503, _STOPPING) if method in _READS else (504, _INTERRUPTED)
    if has_begun:
        body = b""
    else:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
