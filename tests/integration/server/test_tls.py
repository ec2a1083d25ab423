"""`tls auto` with real servers, a real worker, the command line and the SDK."""

import asyncio
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from phalanx.client import Client, InvalidError, UnreachableError, UntrustedError
from tests.integration.agent.machines import Machine
from tests.integration.server.processes import ServerProcess, Start, phalanx, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, eventually, within
from tests.plain_http import async_http_client
from tests.ports import free_port

WRONG = f"sha256:{'a' * 64}"


async def secure(
    start: Start, store: str, name: str, *flags: str, before: Sequence[str] = ()
) -> ServerProcess:
    server = await start(store, name, "--tls=auto", *flags, before=before)
    await server.line("leading")
    return server


def pin_of(server: ServerProcess) -> str:
    fingerprint: str = server.seen("certificate authority in use")[-1]["fingerprint"]
    return fingerprint


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The SDK stores its pins in the test's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "sdk"))


@pytest_asyncio.fixture
async def server(start: Start, tmp_path: Path) -> ServerProcess:
    return await secure(start, sqlite_at(tmp_path), "only", f"--port={free_port()}")


@pytest_asyncio.fixture
async def machine(server: ServerProcess, tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path, "w-1", server.url)
    yield machine
    await machine.kill()


async def registered(machine: Machine) -> None:
    async def is_there() -> bool:
        return bool(machine.logged("registered"))

    await eventually(is_there, PATIENCE_S, machine.log)


async def test_a_job_runs_over_tls_with_login_command_line_and_sdk(
    server: ServerProcess, machine: Machine, tmp_path: Path
) -> None:
    pin = pin_of(server)
    await machine.start(f"--fingerprint={pin}")
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    status, _, err = await phalanx("login", server.url, f"--fingerprint={pin}", **home)
    assert status == 0, err
    status, _, err = await phalanx("submit", "--wait", "--", "echo", "hello", **home)
    assert status == 0, err
    for file in (tmp_path / "home" / "phalanx").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for file in machine.state.glob("ca-*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def jobs() -> int:
        with Client(server.url, fingerprint=pin) as client:
            return len(list(client.jobs()))

    assert await asyncio.to_thread(jobs) == 1


async def test_a_wrong_fingerprint_is_refused_and_both_are_named(
    server: ServerProcess, machine: Machine, tmp_path: Path
) -> None:
    await machine.start(f"--fingerprint={WRONG}")
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    status, _, err = await phalanx("login", server.url, f"--fingerprint={WRONG}", **home)
    assert status == 5
    assert not (tmp_path / "home").exists()
    assert await machine.ended() == 2
    for told in (err, machine.log()):
        assert pin_of(server) in told
        assert WRONG in told
    with Client(server.url, fingerprint=WRONG) as client, pytest.raises(UntrustedError):
        await asyncio.to_thread(client.queues)


async def test_an_unknown_authority_plain_http_and_old_tls_are_refused_with_a_cure(
    server: ServerProcess, machine: Machine
) -> None:
    await machine.start()
    status, _, err = await phalanx("jobs", f"--server={server.url}")
    assert status == 5
    assert "unknown authority" in err
    assert "--fingerprint" in err
    plain = server.url.replace("https:", "http:")
    with Client(plain, patience_s=0) as client, pytest.raises(InvalidError, match="write https://"):
        await asyncio.to_thread(client.queues)
    await old_tls_is_refused(server)

    async def is_refused() -> bool:
        return any("unknown authority" in line["error"] for line in machine.logged(CANNOT))

    await eventually(is_refused, PATIENCE_S, machine.log)
    assert not machine.logged("registered")


CANNOT = "cannot reach server"


async def test_a_server_in_the_middle_is_refused_by_worker_and_client(
    server: ServerProcess, machine: Machine, start: Start, tmp_path: Path
) -> None:
    """Another server with `tls auto`, but another authority, takes over the address."""
    pin = pin_of(server)
    await machine.start(f"--fingerprint={pin}")
    await registered(machine)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    assert (await phalanx("login", server.url, f"--fingerprint={pin}", **home))[0] == 0
    await server.kill()
    port = server.url.rpartition(":")[2]
    (tmp_path / "evil").mkdir()
    evil = await secure(start, sqlite_at(tmp_path / "evil"), "evil", f"--port={port}")
    assert pin_of(evil) != pin
    status, _, err = await phalanx("jobs", **home)
    assert status == 5
    assert f"not signed by the pinned authority {pin}" in err

    async def is_refused() -> bool:
        return any("certificate" in line["error"] for line in machine.logged(CANNOT))

    await eventually(is_refused, PATIENCE_S, machine.log)
    trust = ssl.create_default_context(cadata=await authorities(evil))
    async with async_http_client(evil.url, verify=trust) as client:
        assert (await client.get("/workers")).json() == []


async def authorities(server: ServerProcess) -> str:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    async with async_http_client(server.url, verify=unverified) as client:
        return (await client.get("/ca")).text


async def old_tls_is_refused(server: ServerProcess) -> None:
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(OSError, match=r"^$|SSL"):
        await within(PATIENCE_S, asyncio.open_connection("127.0.0.1", port, ssl=old))


async def test_the_authority_is_rotated_while_servers_and_clients_run(
    server: ServerProcess, machine: Machine, tmp_path: Path
) -> None:
    store, first = f"--store={sqlite_at(tmp_path)}", pin_of(server)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    assert (await phalanx("login", server.url, f"--fingerprint={first}", **home))[0] == 0
    status, out, err = await phalanx("ca", "rotate", store)
    assert status == 0, err
    second = out.strip()
    await server.line("certificate authority in use", count=2)
    assert pin_of(server) == second
    for pin in (first, second):
        await can_connect(server, pin)
    # Another login takes over the new authority.
    assert (await phalanx("login", server.url, **home))[0] == 0
    assert second in (tmp_path / "home" / "phalanx" / "client.toml").read_text()
    status, _, err = await phalanx("ca", "remove", store, second)
    assert status == 2
    assert "signs the certificates" in err
    assert (await phalanx("ca", "remove", store, first))[0] == 0
    await server.line("certificate authority in use", count=3)
    assert (await phalanx("jobs", **home))[0] == 0
    with pytest.raises(UnreachableError, match=f"not signed by the pinned authority {first}"):
        await can_connect(server, first)


async def can_connect(
    server: ServerProcess, pin: str, timeout_s: float = PATIENCE_S, patience_s: float = 0
) -> None:
    with Client(server.url, fingerprint=pin, timeout_s=timeout_s, patience_s=patience_s) as client:
        await asyncio.to_thread(client.queues)


async def test_a_standby_presents_a_certificate_of_the_same_authority(
    start: Start, dsn: str
) -> None:
    one, two = await asyncio.gather(*(start(dsn, name, "--tls=auto") for name in ("one", "two")))
    assert pin_of(one) == pin_of(two)
    for server in (one, two):
        # The first of them may not lead yet.
        await can_connect(server, pin_of(one), patience_s=PATIENCE_S)


async def test_connections_without_a_handshake_do_not_keep_others_out(
    start: Start, tmp_path: Path
) -> None:
    """More of them than the server may have open files."""
    few_files = ("prlimit", "--nofile=300:300")
    server = await secure(start, sqlite_at(tmp_path), "only", before=few_files)
    port = int(server.url.rpartition(":")[2])
    with ExitStack() as attack:
        for _ in range(500):
            attack.enter_context(socket.create_connection(("127.0.0.1", port)))
        # Sooner than the handshakes time out.
        await can_connect(server, pin_of(server), 9)
