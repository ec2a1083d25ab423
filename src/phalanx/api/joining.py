"""Joining: a worker exchanges a join token for a credential of its own, and renews it later.

The worker makes the secret itself and sends only its digest, so that a request whose answer was
lost can be repeated.
"""

import re
from typing import Any

from litestar import Request, post
from litestar.openapi.spec import Schema
from litestar.params import FromPath

from phalanx.api import request_body
from phalanx.api.audit import name_target, record_of
from phalanx.api.auth import AGENTS, JOINING, principal_of
from phalanx.api.errors import wrong
from phalanx.api.services import Services, services_of
from phalanx.core.errors import Conflict
from phalanx.core.model import Protocol
from phalanx.core.spec.fields import REQUIRED, Field, refusal, text
from phalanx.core.spec.names import worker_id as read_worker_id
from phalanx.engine.turn import Turn
from phalanx.identity.principal import check_worker
from phalanx.tls.authority import InvalidRequest
from phalanx.wire.tokens import JoinReply

_DIGEST = re.compile(r"[0-9a-f]{64}")


def _digest(value: object) -> str:
    digest = text(value)
    if not _DIGEST.fullmatch(digest):
        raise refusal("is not a SHA-256; write 64 hexadecimal digits, in lower case")
    return digest


_STRING = Schema(type="string")  # type: ignore[arg-type]
_EXAMPLE = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_RENEW_FIELDS = {"credential": Field(_digest, REQUIRED), "csr": Field(text)}
_JOIN_FIELDS = {"id": Field(read_worker_id, REQUIRED), **_RENEW_FIELDS}
_JOIN_BODY = request_body.documented(
    {"id": _STRING, "credential": _STRING, "csr": _STRING},
    {"id": "w-1", "credential": _EXAMPLE},
    required=("id", "credential"),
)
_RENEW_BODY = request_body.documented(
    {"credential": _STRING, "csr": _STRING}, {"credential": _EXAMPLE}, required=("credential",)
)


@post(
    "/workers/join",
    operation_class=_JOIN_BODY,
    opt={"allowed": JOINING, "action": "join"},
    status_code=200,
    summary="Join a worker to the cluster",
)
async def join(request: Request[Any, Any, Any]) -> JoinReply:
    """`credential` is the SHA-256 of a secret, which is the worker's token from then on.

    A worker that has joined cannot join again with another secret until its credential is revoked.
    With `tls auto`, the worker gets a certificate for the key of `csr`, and must show it from then
    on.
    """
    fields = await request_body.read_one(request, "a mapping, like {id: w-1}", _JOIN_FIELDS)
    worker = fields["id"]
    name_target(request.scope, worker)
    services, principal = services_of(request), principal_of(request)
    await services.engine.do(lambda turn: _check_name(turn, worker))
    reply = _reply(services, worker, fields["csr"])
    audit = record_of(request, services.clock(), target=worker)
    await services.tokens.join(principal, worker, fields["credential"], audit)
    return reply


def _check_name(turn: Turn, worker: str) -> None:
    """Raise Conflict if a worker of the plain protocol has this name."""
    node = turn.cluster.nodes.get(worker)
    if node is not None and node.worker.protocol is Protocol.PLAIN:
        raise Conflict(
            f"worker {worker} is registered with the plain protocol; choose another name, or ask an"
            " admin to remove that worker"
        )


@post(
    "/workers/{worker_id:str}/credential",
    operation_class=_RENEW_BODY,
    opt={"allowed": AGENTS, "action": "renew credential"},
    status_code=200,
    summary="Renew the credential of a worker",
)
async def renew(request: Request[Any, Any, Any], worker_id: FromPath[str]) -> JoinReply:
    """The previous secret stays valid until the new one is used for the first time."""
    check_worker(principal_of(request), worker_id)
    fields = await request_body.read_one(request, "a mapping, like {credential: …}", _RENEW_FIELDS)
    services = services_of(request)
    services.engine.check_leading()
    reply = _reply(services, worker_id, fields["csr"])
    await services.tokens.renew(worker_id, fields["credential"])
    return reply


def _reply(services: Services, worker: str, csr: str | None) -> JoinReply:
    """Made before the credential is stored: a request that is refused must change nothing."""
    renew_after = services.info.renew_credentials_s
    certificates = services.certificates
    if certificates is None or csr is None:
        return JoinReply(worker, renew_after)
    try:
        certificate = certificates.sign(csr, worker)
    except InvalidRequest as error:
        raise wrong("csr", str(error)) from None
    return JoinReply(worker, renew_after, certificate, certificates.bundle)


ROUTES = [join, renew]
