"""Certificates of the cluster: its authorities, for clients that pin them."""

from typing import Any, Protocol

from litestar import Request, Response, get
from litestar.types import Scope

from phalanx.api.services import services_of
from phalanx.core.errors import Unknown
from phalanx.identity.principal import CertificateRequired, Principal

#: The key of a request's state with the certificate that the client has shown, in DER.
CLIENT_CERTIFICATE = "client_certificate"


class Certificates(Protocol):
    """The authorities of the cluster, and the certificates that they sign."""

    @property
    def bundle(self) -> str:
        """The certificates of all authorities, the latest first, in PEM."""

    def sign(self, request_pem: str, worker: str) -> str:
        """A certificate for a worker, in PEM. Raises InvalidRequest."""

    def worker_of(self, certificate: bytes) -> str | None:
        """The worker that a certificate, in DER, was signed for; None if it is not valid."""


def check_certificate(
    certificates: Certificates | None, principal: Principal, scope: Scope
) -> None:
    """Raise CertificateRequired unless an agent has shown the certificate of its worker.

    A credential that was stolen is useless without it.
    """
    if certificates is None or principal.role != "agent":
        return
    shown: bytes | None = scope.get("state", {}).get(CLIENT_CERTIFICATE)
    worker = None if shown is None else certificates.worker_of(shown)
    if worker is None or not principal.may_act_as(worker):
        found = "none was shown" if worker is None else f"that of worker {worker} was shown"
        raise CertificateRequired(
            f"worker {principal.workers} must show its own certificate, and {found}; a worker gets"
            " one when it joins over https"
        )


@get("/ca", media_type="application/x-pem-file", summary="Certificate authorities of the cluster")
async def authorities(request: Request[Any, Any, Any]) -> Response[str]:
    """The certificates of `tls auto`, the latest first. Compare the SHA-256 of one with the
    fingerprint that the server prints before you trust it."""
    certificates = services_of(request).certificates
    if certificates is None:
        raise Unknown("this server has no certificate authority; start it with --tls auto")
    return Response(certificates.bundle, media_type="application/x-pem-file")


ROUTES = [authorities]
