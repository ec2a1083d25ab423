"""Certificates of an API server and of its clients."""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from phalanx.tls.authority import CERTIFICATE_LIFE, Authority, key_to_pem, new_key, to_pem

#: A name of the API server that no address leads to; clients reach it with `tls-server-name`.
SERVER_NAME = "kubernetes.phalanx.test"


class ClusterAuthority:
    """An authority in a folder: `ca.crt`, `server.crt`, `server.key`, and a pair of keys
    for tokens."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._authority = Authority.create(datetime.now(UTC))
        self._folder = folder
        key = new_key()
        server = self._authority.sign_server(key.public_key(), names, datetime.now(UTC))
        self._write("ca.crt", to_pem(self._authority.certificate))
        self._write("server.crt", to_pem(server))
        self._write("server.key", key_to_pem(key))
        signer = new_key()
        self._write("tokens.key", key_to_pem(signer))
        public = signer.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._write("tokens.pub", public.decode())
        self._write("ca.key", self._authority.key_pem)

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)


def client_certificate(folder: Path, user: str, group: str) -> tuple[str, str]:
    """Certificate and key of a client, signed by the authority of the folder."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = Authority.from_pem((folder / "ca.crt").read_text(), (folder / "ca.key").read_text())
    key, now = new_key(), datetime.now(UTC)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, group),
            x509.NameAttribute(NameOID.COMMON_NAME, user),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(now + CERTIFICATE_LIFE)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(signer._key, hashes.SHA256())
    )
    return to_pem(certificate), key_to_pem(key)
