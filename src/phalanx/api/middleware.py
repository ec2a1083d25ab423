"""Middleware of every request: its id, and a fast path for the sync calls of agents.

Sync calls are most of a fleet's traffic, so they bypass the framework. The route `sync` below does
the same inside the framework, which describes it in the API's documentation.
"""

import re
import secrets
from itertools import count
from typing import Any

import msgspec
from litestar import Request, post
from litestar.enums import ScopeType
from litestar.openapi.spec import Schema
from litestar.params import FromPath
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from phalanx.api import request_body
from phalanx.api.audit import name_target, note_refusal
from phalanx.api.auth import AGENTS, identify, is_private, principal_of
from phalanx.api.certificates import check_certificate
from phalanx.api.errors import refusal_of, wrong
from phalanx.api.json_body import JsonBody
from phalanx.api.services import Services, services_of
from phalanx.core.spec.fields import shown
from phalanx.identity.principal import check_role, check_worker
from phalanx.wire.sync import Reported, SyncReply, SyncRequest

#: A request without an id gets this and a number.
_PROCESS = secrets.token_hex(6).encode()
_COUNT = count(1)
#: Reports in one call: more than a worker has tasks.
_MAX_REPORTS = 5000
_VALID_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_SYNC = re.compile(r"/workers/([^/]+)/sync")

_encode = msgspec.json.Encoder().encode
_SYNC_BODY = JsonBody(SyncRequest, words={"state": Reported})


class Middleware:
    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        scope["state"]["request_id"] = _request_id(scope).decode()
        path = scope["path"]
        sync = _SYNC.fullmatch(path) if path.endswith("/sync") else None
        if sync is not None and scope["method"] == "POST":
            await self._sync(scope, receive, send, sync[1])
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_common_headers(scope)]
            await send(message)

        await self._app(scope, receive, send_with_id)

    async def _check_agent(self, scope: HTTPScope, worker: str) -> None:
        principal = await identify(self._services.auth, scope)
        check_role(principal, AGENTS)
        check_certificate(self._services.certificates, principal, scope)
        check_worker(principal, worker)

    async def _sync(self, scope: HTTPScope, receive: Receive, send: Send, worker: str) -> None:
        status, headers = 200, [(b"content-type", b"application/json")]
        try:
            await self._check_agent(scope, worker)
            data = await _body(receive, self._services.info.body_limit_bytes)
            reply = await self._services.agent_sync.sync(
                worker, _request(data), is_private=is_private(scope)
            )
            await self._check_agent(scope, worker)  # it may have been revoked while it waited
            body = _encode(reply)
        except Exception as error:  # answered in the same form as every error
            refusal = refusal_of(error, scope)
            if refusal.status in (401, 403):
                name_target(scope, worker)  # no route has read the path
                note_refusal(self._services, scope, "sync", refusal)
            status, body = refusal.status, refusal.body
            headers += [(k.lower().encode(), v.encode()) for k, v in refusal.headers.items()]
        headers += [(b"content-length", b"%d" % len(body)), *_common_headers(scope)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _common_headers(scope: HTTPScope) -> list[tuple[bytes, bytes]]:
    """The headers of every response."""
    return [
        (b"x-request-id", scope["state"]["request_id"].encode()),
        # A browser must not take the output of a task for a page of the dashboard.
        (b"x-content-type-options", b"nosniff"),
    ]


def _request_id(scope: HTTPScope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _VALID_ID.fullmatch(value):
            return bytes(value)
    return b"%s-%x" % (_PROCESS, next(_COUNT))


async def _body(receive: Receive, limit_bytes: int) -> bytes:
    data = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return data
        data += message["body"]
        if len(data) > limit_bytes:
            raise request_body.too_large(limit_bytes)
        if not message["more_body"]:
            return data


def _request(data: bytes) -> SyncRequest:
    """Raises Invalid with the path of the field that is wrong."""
    request = _SYNC_BODY.decode(data)
    if not 0 <= request.wait < float("inf"):
        raise wrong("wait", f"is {shown(request.wait)}; write a number of seconds, 0 or more")
    if len(request.tasks) > _MAX_REPORTS:
        raise wrong(
            "tasks",
            f"has {len(request.tasks)} reports; a call has at most {_MAX_REPORTS}: send the others"
            " in the next call",
        )
    return request


_BODY = request_body.documented(
    {
        "incarnation": Schema(type="string"),  # type: ignore[arg-type]
        "seq": Schema(type="integer"),  # type: ignore[arg-type]
        "term": Schema(type="integer"),  # type: ignore[arg-type]
        "full": Schema(type="boolean"),  # type: ignore[arg-type]
        "tasks": Schema(type="array", items=Schema(type="object")),  # type: ignore[arg-type]
        "wait": Schema(type="number"),  # type: ignore[arg-type]
    },
    {
        "incarnation": "i-1",
        "seq": 7,
        "term": 3,
        "tasks": [{"id": "j-7kq2m4xd.0", "attempt": 1, "state": "running"}],
        "wait": 10,
    },
    required=("incarnation", "seq"),
)


@post(
    "/workers/{worker_id:str}/sync",
    operation_class=_BODY,
    opt={"allowed": AGENTS},
    status_code=200,
    summary="Exchange an agent's reports for instructions",
)
async def sync(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> SyncReply:
    """The call is held for up to `wait` seconds until there are new instructions."""
    check_worker(principal_of(request), worker_id)
    services = services_of(request)
    data = await request_body.raw(request, services.info.body_limit_bytes)
    return await services.agent_sync.sync(
        worker_id, _request(data), is_private=is_private(request.scope)
    )


ROUTES = [sync]
