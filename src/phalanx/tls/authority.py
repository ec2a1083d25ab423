"""A certificate authority, and the certificates that it signs for servers and workers.

A certificate names its purpose: a worker's certificate does not pass as a server's.
"""

import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
#: The life of a server's or a worker's certificate. It is renewed when a third of it is left.
CERTIFICATE_LIFE = timedelta(days=90)
_RENEW_BEFORE = CERTIFICATE_LIFE / 3
#: Certificates are valid from this long ago, for hosts whose clocks are slow.
_CLOCK_SLACK = timedelta(hours=1)
_WORKER_URI = "phalanx:worker:"


class InvalidRequest(ValueError):  # noqa: N818
    """A certificate signing request that cannot be used; the message says why."""


class Authority:
    """A CA certificate and its private key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def create(cls, now: datetime) -> "Authority":
        key = new_key()
        name = _name(f"Phalanx CA {secrets.token_hex(4)}")
        certificate = _authority_certificate(name, key.public_key(), name, key, now)
        return cls(certificate, key)

    @classmethod
    def from_pem(cls, certificate: str, key: str) -> "Authority":
        loaded = serialization.load_pem_private_key(key.encode(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the authority is not an ECDSA key")  # noqa: TRY004
        return cls(x509.load_pem_x509_certificate(certificate.encode()), loaded)

    @property
    def key_pem(self) -> str:
        return key_to_pem(self._key)

    def cross_sign(self, other: x509.Certificate, now: datetime) -> x509.Certificate:
        """The certificate of another authority, signed by this one: hosts that trust only this
        authority accept what the other one signs."""
        key = other.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise TypeError("bug: the key of an authority is not an ECDSA key")
        return _authority_certificate(other.subject, key, self.certificate.subject, self._key, now)

    def sign_server(
        self, key: ec.EllipticCurvePublicKey, names: Iterable[str], now: datetime
    ) -> x509.Certificate:
        """A certificate for a server with these host names and addresses."""
        subjects = [general for name in names if (general := _general_name(name)) is not None]
        return self._sign(key, subjects, ExtendedKeyUsageOID.SERVER_AUTH, now)

    def sign_worker(self, request_pem: str, worker: str, now: datetime) -> x509.Certificate:
        """A certificate for a worker. Of the request only the key counts. Raises InvalidRequest."""
        try:
            request = x509.load_pem_x509_csr(request_pem.encode())
            key = request.public_key()
            is_signed = request.is_signature_valid
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InvalidRequest("is not a PEM certificate signing request") from error
        if not is_signed:
            raise InvalidRequest("is not signed with its own key")
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(
            key.curve, ec.SECP256R1
        ):
            raise InvalidRequest("does not have an ECDSA key on the curve P-256")
        subjects = [x509.UniformResourceIdentifier(_WORKER_URI + quote(worker, safe=""))]
        return self._sign(key, subjects, ExtendedKeyUsageOID.CLIENT_AUTH, now)

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        subjects: Sequence[x509.GeneralName],
        purpose: x509.ObjectIdentifier,
        now: datetime,
    ) -> x509.Certificate:
        expires = min(now + CERTIFICATE_LIFE, self.certificate.not_valid_after_utc)
        builder = _builder(_name("Phalanx"), key, self.certificate.subject, now, expires)
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(subjects), critical=False)
            .add_extension(_issuer_id(self._key), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def signing_request(key: ec.EllipticCurvePrivateKey) -> str:
    """A certificate signing request, in PEM. The server decides which worker it is for."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name("Phalanx"))
    return to_pem(builder.sign(key, hashes.SHA256()))


def to_pem(document: x509.Certificate | x509.CertificateSigningRequest) -> str:
    return document.public_bytes(serialization.Encoding.PEM).decode()


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def is_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether the certificate expires soon, or has expired."""
    return now >= certificate.not_valid_after_utc - _RENEW_BEFORE


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def worker_of(certificate: x509.Certificate) -> str | None:
    """The worker that the certificate was signed for; None if it is not a worker's."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        if uri.startswith(_WORKER_URI):
            return unquote(uri.removeprefix(_WORKER_URI))
    return None


def _authority_certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    return (
        _builder(subject, key, issuer, now, now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(_issuer_id(issuer_key), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    now: datetime,
    expires: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _issuer_id(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(name: str) -> x509.GeneralName | None:
    """A host name or an address; None if no certificate can have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name.encode("idna").decode())
    except ValueError:
        return None
