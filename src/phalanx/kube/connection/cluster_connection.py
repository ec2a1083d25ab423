"""A way to one API server: address, trust, proxy, credentials and impersonation."""

import ssl
import tempfile
from pathlib import Path
from typing import NamedTuple

from phalanx.kube.connection.credentials import Credential, Credentials, PemSource
from phalanx.kube.connection.errors import ConnectionConfigError


class ClusterConnection(NamedTuple):
    server: str  #: the URL, without a slash at the end
    credentials: Credentials
    authority: PemSource = PemSource()  #: empty: the authorities that the machine trusts
    skip_verify: bool = False
    tls_server_name: str | None = None
    proxy: str | None = None
    impersonation: tuple[tuple[str, str], ...] = ()  #: headers
    namespace: str = "default"


def tls_context(connection: ClusterConnection, credential: Credential) -> ssl.SSLContext:
    """A TLS context with the client's certificate. Raises ConnectionConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Authorities of many clusters lack extensions that the strict mode asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    authority = connection.authority.read()
    try:
        if connection.skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif authority:
            context.load_verify_locations(cadata=authority.decode())
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError) as error:
        raise ConnectionConfigError(
            f"the certificate authority of {connection.server} is not a PEM certificate: {error}"
        ) from error
    if credential.certificate:
        _load_certificate(context, credential)
    return context


def _load_certificate(context: ssl.SSLContext, credential: Credential) -> None:
    """Load the certificate through a file that only this user can read, and that is gone after."""
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        path = Path(folder) / "client.pem"
        path.touch(0o600)
        path.write_bytes(credential.certificate + b"\n" + credential.key)
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise ConnectionConfigError(
                f"the client certificate and its key cannot be used: {error}"
            ) from error
