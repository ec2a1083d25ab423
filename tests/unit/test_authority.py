"""Certificates in real handshakes: what a client or a server accepts, and what it refuses."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from phalanx.tls import authority as ca
from phalanx.tls.authority import Authority, to_pem

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=100)


def server_context(folder: Path, by: Authority, *, now: datetime = NOW) -> ssl.SSLContext:
    key = ca.new_key()
    certificate = by.sign_server(key.public_key(), ["localhost", "127.0.0.1"], now)
    return loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), folder, [certificate], key)


def loaded(
    context: ssl.SSLContext, folder: Path, chain: list[x509.Certificate], key: object
) -> ssl.SSLContext:
    file = folder / "chain.pem"
    file.write_text(ca.key_to_pem(key) + "".join(map(to_pem, chain)))  # type: ignore[arg-type]
    context.load_cert_chain(file)
    return context


def trusting(*authorities: Authority) -> ssl.SSLContext:
    bundle = "".join(to_pem(each.certificate) for each in authorities)
    return ssl.create_default_context(cadata=bundle)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> bytes:
    """The certificate of the client, or b"". Raises ssl.SSLError of either side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(sides)
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return sides[1].getpeercert(binary_form=True) or b""


def test_a_server_of_the_authority_is_trusted_under_its_names_only(tmp_path: Path) -> None:
    authority = Authority.create(NOW)
    server = server_context(tmp_path, authority)
    handshake(server, trusting(authority))
    handshake(server, trusting(authority), "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(server, trusting(authority), "other.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="local issuer"):
        handshake(server, trusting(Authority.create(NOW)))


def test_an_expired_certificate_is_replaced_in_the_live_context(tmp_path: Path) -> None:
    authority = Authority.create(LONG_AGO)
    key = ca.new_key()
    expired = authority.sign_server(key.public_key(), ["localhost"], LONG_AGO)
    assert ca.is_due(expired, NOW)
    server = loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tmp_path, [expired], key)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(server, trusting(authority))
    fresh = authority.sign_server(key.public_key(), ["localhost"], NOW)
    assert not ca.is_due(fresh, NOW)
    loaded(server, tmp_path, [fresh], key)
    handshake(server, trusting(authority))


def test_a_new_authority_is_accepted_by_hosts_that_trust_only_the_previous_one(
    tmp_path: Path,
) -> None:
    first, second, third = (Authority.create(NOW) for _ in range(3))
    crosses = [
        second.cross_sign(third.certificate, NOW),
        first.cross_sign(second.certificate, NOW),
    ]
    key = ca.new_key()
    leaf = third.sign_server(key.public_key(), ["localhost"], NOW)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server = loaded(context, tmp_path, [leaf, *crosses], key)
    for trusted in (first, second, third):
        handshake(server, trusting(trusted))


def worker_context(folder: Path, by: Authority, worker: str, trusted: Authority) -> ssl.SSLContext:
    key = ca.new_key()
    certificate = by.sign_worker(ca.signing_request(key), worker, NOW)
    return loaded(trusting(trusted), folder, [certificate], key)


def test_a_worker_proves_its_name_with_a_certificate_of_the_authority(tmp_path: Path) -> None:
    authority, other = Authority.create(NOW), Authority.create(NOW)
    server = server_context(tmp_path, authority)
    server.verify_mode = ssl.CERT_OPTIONAL
    server.load_verify_locations(cadata=to_pem(authority.certificate))
    assert handshake(server, trusting(authority)) == b""
    name = "rack 7/ü" + "x" * 200
    shown = handshake(server, worker_context(tmp_path, authority, name, authority))
    certificate = x509.load_der_x509_certificate(shown)
    assert ca.worker_of(certificate) == name
    assert ca.is_issued_by(certificate, authority.certificate)
    assert not ca.is_issued_by(certificate, other.certificate)
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(server, worker_context(tmp_path, other, "w-1", authority))


def test_a_worker_cannot_use_its_certificate_as_a_server(tmp_path: Path) -> None:
    authority = Authority.create(NOW)
    key = ca.new_key()
    certificate = authority.sign_worker(ca.signing_request(key), "localhost", NOW)
    server = loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tmp_path, [certificate], key)
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        handshake(server, trusting(authority))


@pytest.mark.parametrize("request_pem", ["", "nonsense", "-----BEGIN CERTIFICATE REQUEST-----\n"])
def test_a_request_that_is_not_one_is_refused(request_pem: str) -> None:
    with pytest.raises(ca.InvalidRequest, match="not a PEM"):
        Authority.create(NOW).sign_worker(request_pem, "w-1", NOW)


def test_an_authority_is_stored_and_loaded() -> None:
    authority = Authority.create(NOW)
    loaded_again = Authority.from_pem(to_pem(authority.certificate), authority.key_pem)
    key = ca.new_key()
    certificate = loaded_again.sign_server(key.public_key(), ["localhost"], NOW)
    assert ca.is_issued_by(certificate, authority.certificate)
    assert certificate.not_valid_after_utc - NOW <= ca.CERTIFICATE_LIFE
