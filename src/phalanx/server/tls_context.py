"""The TLS context of a server, and how a certificate is loaded into it while it is in use."""

import os
import ssl
from typing import Protocol


class ServerCertificate(Protocol):
    """The TLS context of a server, and the work that keeps its certificate current."""

    context: ssl.SSLContext

    async def keep_current(self) -> None:
        """Replace the certificate when it is due, forever."""


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A resumed session would keep the certificates of the first one.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def load_chain(context: ssl.SSLContext, pem: str) -> None:
    """Load a key and its chain, which the library reads from files only: from one in memory."""
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(handle, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
