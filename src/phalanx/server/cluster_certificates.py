"""The certificates of `tls auto`: signed by the cluster's authority, which is in the store.

Every server of the cluster reads the authorities from the store, so all present certificates of the
same authority. The server's own key is in memory only. Certificates are replaced in the running
server: new connections get the new one, and open connections continue.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from cryptography import x509

from phalanx.server.log_output import Logger
from phalanx.server.tls_context import load_chain, server_context
from phalanx.store.protocol import Store, StoredAuthority, StoreError
from phalanx.tls import authority as ca
from phalanx.tls.authority import Authority, to_pem
from phalanx.tls.fingerprint import fingerprint_of

#: How often a server reads the authorities, and looks whether its certificate expires.
_REFRESH_S = 2.0
_KNOWN_WORKERS = 20_000


class _ClientCertificate(NamedTuple):
    worker: str
    expires_at: datetime


class ClusterCertificates:
    """The server's TLS context, kept current, and the certificates of the workers."""

    def __init__(
        self,
        store: Store,
        names: Iterable[str],
        log: Logger,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.context = server_context()
        # Users have no certificate; a worker's request is refused without one.
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self._store = store
        self._names = tuple(dict.fromkeys(names))
        self._log = log
        self._clock = clock
        self._stored: tuple[StoredAuthority, ...] = ()
        self._authorities: list[Authority] = []
        self._certificate: x509.Certificate | None = None
        self._client = lru_cache(_KNOWN_WORKERS)(self._read_client)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the latest authority."""
        return fingerprint_of(self._stored[-1].certificate)

    @property
    def bundle(self) -> str:
        """The certificates of all authorities, the latest first, in PEM."""
        return "".join(each.certificate for each in reversed(self._stored))

    def sign(self, request_pem: str, worker: str) -> str:
        """A certificate for a worker, in PEM. Raises InvalidRequest."""
        signed = self._authorities[-1].sign_worker(request_pem, worker, self._clock())
        return to_pem(signed)

    def worker_of(self, certificate: bytes) -> str | None:
        """The worker that a certificate, in DER, was signed for; None if it is not valid."""
        client = self._client(certificate)
        return client.worker if client is not None and self._clock() < client.expires_at else None

    async def refresh(self) -> None:
        """Read the authorities, create the first one, and renew the certificate if it is due.

        Raises StoreError.
        """
        stored = await self._store.authorities()
        if not stored:
            await self._store.add_authority(first_authority(self._clock()))
            stored = await self._store.authorities()
        if stored != self._stored:
            self._stored = stored
            self._authorities = [Authority.from_pem(each.certificate, each.key) for each in stored]
            # An authority that was removed stays in the context; `worker_of` refuses it.
            self.context.load_verify_locations(cadata=self.bundle)
            self._client.cache_clear()
            self._certificate = None
            self._log.info("certificate authority in use", fingerprint=self.fingerprint)
        if self._certificate is None or ca.is_due(self._certificate, self._clock()):
            self._renew()

    async def keep_current(self) -> None:
        """Refresh forever, whether or not the store answers."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            try:
                await self.refresh()
            except StoreError as error:
                self._log.warning("cannot read the certificate authorities", error=str(error))
                if self._certificate is not None and ca.is_due(self._certificate, self._clock()):
                    self._renew()

    def _renew(self) -> None:
        key = ca.new_key()
        certificate = self._authorities[-1].sign_server(
            key.public_key(), self._names, self._clock()
        )
        chain = to_pem(certificate) + "".join(self._crosses())
        load_chain(self.context, ca.key_to_pem(key) + chain)
        self._certificate = certificate
        self._log.info(
            "server certificate issued",
            names=self._names,
            expires=certificate.not_valid_after_utc.isoformat(),
        )

    def _crosses(self) -> list[str]:
        """The links from the latest authority to the earlier ones that are still trusted."""
        crosses = []
        for before, after in reversed(list(zip(self._stored, self._stored[1:], strict=False))):
            if before.number + 1 != after.number:
                break
            crosses.append(after.cross)
        return crosses

    def _read_client(self, der: bytes) -> _ClientCertificate | None:
        certificate = x509.load_der_x509_certificate(der)
        worker = ca.worker_of(certificate)
        if worker is None or not any(
            ca.is_issued_by(certificate, each.certificate) for each in self._authorities
        ):
            return None
        return _ClientCertificate(worker, certificate.not_valid_after_utc)


def first_authority(now: datetime) -> StoredAuthority:
    authority = Authority.create(now)
    return StoredAuthority(1, to_pem(authority.certificate), authority.key_pem)


def next_authority(latest: StoredAuthority, now: datetime) -> StoredAuthority:
    """The successor of an authority, with a certificate that the latest one has signed too."""
    authority = Authority.create(now)
    signer = Authority.from_pem(latest.certificate, latest.key)
    cross = to_pem(signer.cross_sign(authority.certificate, now))
    return StoredAuthority(
        latest.number + 1, to_pem(authority.certificate), authority.key_pem, cross
    )
