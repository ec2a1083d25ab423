"""Workers prove their names with certificates: attacks with stolen credentials, and renewals."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from cryptography import x509

from phalanx.client import Client
from phalanx.identity.token_changes import TokenChanges
from phalanx.identity.token_registry import TokenRegistry
from phalanx.identity.tokens import TokenRequest
from phalanx.store.sqlite import SQLiteStore
from phalanx.tls import authority as ca
from phalanx.tls.authority import Authority
from phalanx.tls.fingerprint import fingerprint_of
from tests.integration.agent.machines import Machine
from tests.integration.server.processes import ServerProcess, Start, phalanx, sqlite_at
from tests.integration.server.waiting import eventually
from tests.plain_http import async_http_client


class Secured:
    """A server with `tls auto` that requires tokens, and its workers."""

    def __init__(self, folder: Path, server: ServerProcess, store: SQLiteStore) -> None:
        self.folder = folder
        self.server = server
        self.store = store
        self.tokens: dict[str, str] = {}
        self.machines: list[Machine] = []

    @property
    def first_pin(self) -> str:
        return str(self.server.seen("certificate authority in use")[0]["fingerprint"])

    @property
    def pin(self) -> str:
        return str(self.server.seen("certificate authority in use")[-1]["fingerprint"])

    async def work(self, name: str) -> Machine:
        machine = Machine(self.folder, name, self.server.url)
        self.machines.append(machine)
        await self.start(machine)
        return machine

    async def start(self, machine: Machine) -> None:
        machine.lines.clear()
        await machine.start(f"--fingerprint={self.first_pin}", PHALANX_TOKEN=self.tokens["join"])
        await self.logged(machine, "registered")

    async def logged(self, machine: Machine, event: str) -> None:
        async def is_logged() -> bool:
            return bool(machine.logged(event))

        await eventually(is_logged, 60, machine.log)

    async def run_job(self) -> None:
        def submit() -> str:
            with Client(self.server.url, self.tokens["root"], fingerprint=self.pin) as client:
                job = client.submit(command=["true"], resources={"gpu": 1})
                return str(client.wait(job.id, timeout_s=60).phase)

        assert await asyncio.to_thread(submit) == "done"

    async def call(
        self, path: str, *, credential: Machine | None, certificate: Machine | None
    ) -> httpx.Response:
        """A request of a thief, with the credential and the certificate of these workers."""
        [authority] = await self.store.authorities()
        trust = ssl.create_default_context(cadata=authority.certificate)
        if certificate is not None:
            trust.load_cert_chain(certificate.state / "certificate.pem")
        headers = {}
        if credential is not None:
            secret = json.loads((credential.state / "credential").read_text())["secret"]
            headers["Authorization"] = f"Bearer {secret}"
        body: dict[str, Any] = {"incarnation": "i-thief", "seq": 10**12, "credential": "0" * 64}
        async with async_http_client(verify=trust) as client:
            return await client.post(self.server.url + path, json=body, headers=headers)


@pytest_asyncio.fixture
async def secured(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Secured]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "sdk"))
    store = SQLiteStore(tmp_path / "phalanx.db")
    await store.open()
    server = await start(sqlite_at(tmp_path), "only", "--tls=auto", "--loopback-open=false")
    await server.line("leading")
    secured = Secured(tmp_path, server, store)
    tokens = TokenChanges(store, TokenRegistry(store, open_on_loopback=False))
    for name, role in (("root", "admin"), ("join", "join")):
        secured.tokens[name] = (await tokens.create(TokenRequest(name=name, role=role))).secret
    yield secured
    await asyncio.gather(*(machine.kill() for machine in secured.machines))
    await store.close()


async def test_a_credential_is_useless_without_the_certificate_of_its_worker(
    secured: Secured,
) -> None:
    one, two = await asyncio.gather(secured.work("w-1"), secured.work("w-2"))
    await secured.run_job()
    for path in ("/workers/w-1/sync", "/workers/w-1/credential"):
        alone = await secured.call(path, credential=one, certificate=None)
        assert (alone.status_code, alone.json()["error"]["code"]) == (401, "certificate_required")
        other = await secured.call(path, credential=one, certificate=two)
        assert (other.status_code, other.json()["error"]["code"]) == (401, "certificate_required")
        assert "that of worker w-2 was shown" in other.json()["error"]["message"]
    no_token = await secured.call("/workers/w-1/sync", credential=None, certificate=one)
    assert (no_token.status_code, no_token.json()["error"]["code"]) == (401, "unauthorised")
    wrong_worker = await secured.call("/workers/w-1/sync", credential=two, certificate=two)
    assert wrong_worker.status_code == 403
    own = await secured.call("/workers/w-1/sync", credential=one, certificate=one)
    assert own.status_code == 409, "refused as another incarnation, and not for its identity"


def certificate_of(machine: Machine) -> x509.Certificate:
    return x509.load_pem_x509_certificate((machine.state / "certificate.pem").read_bytes())


async def replace_certificate(secured: Secured, machine: Machine, *, days_ago: int) -> None:
    """A certificate for the worker that was signed so many days ago, as if the time had passed."""
    stored = (await secured.store.authorities())[0]
    authority, key = Authority.from_pem(stored.certificate, stored.key), ca.new_key()
    then = datetime.now(UTC) - timedelta(days=days_ago)
    signed = authority.sign_worker(ca.signing_request(key), machine.name, then)
    (machine.state / "certificate.pem").write_text(ca.key_to_pem(key) + ca.to_pem(signed))


async def test_a_worker_renews_its_certificate_and_follows_a_new_authority(
    secured: Secured,
) -> None:
    machine = await secured.work("w-1")
    await machine.kill()

    # Expired: the worker cannot show it, and joins again with the join token.
    await replace_certificate(secured, machine, days_ago=100)
    await secured.start(machine)
    assert machine.logged("joined the cluster")
    await machine.kill()

    # Due: the worker renews it over its authenticated connection, from the new authority.
    assert (await phalanx("ca", "rotate", f"--store={sqlite_at(secured.folder)}"))[0] == 0
    await secured.server.line("certificate authority in use", count=2)
    await replace_certificate(secured, machine, days_ago=70)
    await secured.start(machine)
    await secured.logged(machine, "renewed the credential")
    assert not machine.logged("joined the cluster")
    [_, second] = await secured.store.authorities()
    latest = x509.load_pem_x509_certificate(second.certificate.encode())
    assert ca.is_issued_by(certificate_of(machine), latest)

    # The first authority can be removed now, while the worker runs.
    assert (
        await phalanx("ca", "remove", secured.first_pin, f"--store={sqlite_at(secured.folder)}")
    )[0] == 0
    await secured.server.line("certificate authority in use", count=3)
    assert secured.pin == fingerprint_of(second.certificate)
    await secured.run_job()
