"""The certificates of a server over time, with a clock of its own."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from phalanx.agent.tls_identity import TlsIdentity
from phalanx.host.clock import wall_clock
from phalanx.server.cluster_certificates import ClusterCertificates, next_authority
from phalanx.store.memory import MemoryStore
from phalanx.tls.pinning import Pin
from tests.unit.test_authority import handshake

NOW = datetime.now(UTC)


class Clock:
    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=wall_clock)


async def of_server(store: MemoryStore, clock: Clock) -> ClusterCertificates:
    certificates = ClusterCertificates(store, ["localhost"], structlog.get_logger(), clock)
    await certificates.refresh()
    return certificates


def shown_by(server: ClusterCertificates, client: ssl.SSLContext) -> bytes:
    return handshake(server.context, client)


async def test_an_expired_server_certificate_is_renewed_in_the_running_server(
    store: MemoryStore,
) -> None:
    clock = Clock(NOW - timedelta(days=91))
    server = await of_server(store, clock)
    trust = ssl.create_default_context(cadata=server.bundle)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shown_by(server, trust)
    clock.now = NOW
    await server.refresh()
    shown_by(server, trust)


async def test_a_certificate_is_kept_until_it_is_due(store: MemoryStore) -> None:
    clock = Clock()
    server = await of_server(store, clock)
    first = server._certificate
    clock.now += timedelta(days=59)
    await server.refresh()
    assert server._certificate is first
    clock.now += timedelta(days=2)
    await server.refresh()
    assert server._certificate is not first


def joined(server: ClusterCertificates, folder: Path, worker: str, clock: Clock) -> TlsIdentity:
    pin = Pin(server.fingerprint, folder / worker)
    identity = TlsIdentity(folder / f"{worker}.pem", pin, server.bundle, clock)
    identity.accept(server.sign(identity.request(), worker), server.bundle)
    return identity


async def test_a_worker_certificate_expires_and_is_renewed(
    store: MemoryStore, tmp_path: Path
) -> None:
    clock = Clock(NOW - timedelta(days=20))
    server = await of_server(store, clock)
    identity = joined(server, tmp_path, "w-1", clock)
    der = shown_by(server, identity.context())
    assert server.worker_of(der) == "w-1"
    assert not identity.is_due
    clock.now += timedelta(days=61)
    assert identity.is_due
    assert server.worker_of(der) == "w-1"
    clock.now += timedelta(days=30)
    assert server.worker_of(der) is None
    # A worker that finds an expired certificate at its start shows none.
    again = TlsIdentity(tmp_path / "w-1.pem", trusted=server.bundle, clock=clock)
    clock.now = NOW
    await server.refresh()
    assert shown_by(server, again.context()) == b""
    identity.accept(server.sign(identity.request(), "w-1"), server.bundle)
    assert server.worker_of(shown_by(server, identity.context())) == "w-1"
    assert not identity.is_due


async def test_certificates_of_a_removed_authority_are_refused(
    store: MemoryStore, tmp_path: Path
) -> None:
    clock = Clock()
    server, standby = await of_server(store, clock), await of_server(store, clock)
    assert server.fingerprint == standby.fingerprint
    old = joined(server, tmp_path, "w-1", clock).context()
    [first] = await store.authorities()
    await store.add_authority(next_authority(first, NOW))
    for each in (server, standby):
        await each.refresh()
        # The worker trusts only the first authority, and shows a certificate of it.
        assert each.worker_of(shown_by(each, old)) == "w-1"
    shown = shown_by(server, old)
    new = joined(server, tmp_path, "w-2", clock).context()
    await store.remove_authority(first.number)
    await server.refresh()
    assert server.worker_of(shown) is None
    assert server.worker_of(shown_by(server, new)) == "w-2"
    with pytest.raises(ssl.SSLCertVerificationError):
        shown_by(server, old)
    # A worker that pins the new authority does not show its old certificate: it can join again.
    again = TlsIdentity(tmp_path / "w-1.pem", trusted=server.bundle, clock=clock)
    assert shown_by(server, again.context()) == b""


async def test_a_certificate_that_is_not_a_workers_names_no_worker(store: MemoryStore) -> None:
    server = await of_server(store, Clock())
    [authority] = await store.authorities()
    assert server.worker_of(ssl.PEM_cert_to_DER_cert(authority.certificate)) is None
