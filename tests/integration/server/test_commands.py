"""The command line around a server: settings, refusals, and HTTPS."""

import asyncio
import json
import sqlite3
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from phalanx.tls.authority import Authority, key_to_pem, new_key, to_pem
from tests.integration.server.processes import Start, environment, phalanx, sqlite_at
from tests.integration.server.waiting import PATIENCE_S, within
from tests.plain_http import async_http_client


async def test_config_prints_every_value_and_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "phalanx.toml"
    file.write_text('port = 1234\nlease = "5s"\n')
    flags = ("config", "--json", f"--config={file}", "--lost-after=45s")
    status, out, err = await phalanx(*flags, PHALANX_LEASE="7s")
    assert status == 0, err
    told = json.loads(out)
    assert told["port"] == {"value": "1234", "from": f"{file}:1"}
    assert told["lease"] == {"value": "7s", "from": "PHALANX_LEASE"}
    assert told["lost_after"] == {"value": "45s", "from": "--lost-after"}
    assert told["host"] == {"value": "127.0.0.1", "from": "default"}
    status, out, _ = await phalanx("config", f"--config={file}")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("port ")] == [
        ["port", "1234"]
    ]


async def test_config_shows_no_password() -> None:
    _, out, _ = await phalanx("config", PHALANX_STORE="postgres://ada:hunter2@db/x")
    assert "hunter2" not in out
    assert "postgres://ada:…@db/x" in out


@pytest.mark.parametrize("command", ["serve", "config"])
async def test_all_problems_are_reported_at_once(tmp_path: Path, command: str) -> None:
    file = tmp_path / "phalanx.toml"
    file.write_text("potr = 1\n")
    status, out, err = await phalanx(command, f"--config={file}", "--lease=soon")
    assert (status, out) == (2, "")
    assert f"{file}:1: potr is not a setting; did you mean port?" in err
    assert '--lease: lease is "soon", not a duration' in err
    assert "Traceback" not in err


async def test_an_unknown_flag_is_refused_with_a_suggestion() -> None:
    status, _, err = await phalanx("serve", "--lost-aftr=1m")
    assert status == 2
    assert "--lost-after" in err


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("postgres://nobody@127.0.0.1:1/none", "cannot open PostgreSQL"),
        ("sqlite:/proc/phalanx.db", "phalanx.db"),
    ],
)
async def test_a_store_that_cannot_be_opened_is_reported_without_a_traceback(
    store: str, words: str
) -> None:
    for command in (("serve", "--port=0", "--store-wait=1s"), ("token", "list")):
        status, _, err = await phalanx(*command, f"--store={store}")
        assert status == 2
        assert words in err
        assert "Traceback" not in err


async def test_a_file_from_a_newer_phalanx_is_refused(tmp_path: Path) -> None:
    store = sqlite_at(tmp_path)
    assert (await phalanx("token", "list", f"--store={store}"))[0] == 0
    with sqlite3.connect(store.removeprefix("sqlite:")) as db:
        db.execute("INSERT INTO schema_version VALUES (99, 'later')")
    db.close()
    status, _, err = await phalanx("serve", "--port=0", f"--store={store}")
    assert status == 2
    assert "upgrade Phalanx" in err


async def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    store = sqlite_at(tmp_path)
    assert (await phalanx("token", "list", f"--store={store}"))[0] == 0
    with sqlite3.connect(store.removeprefix("sqlite:")) as db:
        db.execute("UPDATE schema_version SET name = '0001_initial.sql of a summer'")
    db.close()
    status, _, err = await phalanx("serve", "--port=0", f"--store={store}")
    assert (status, "Traceback" in err) == (2, False)
    assert "another version of Phalanx wrote this database: use that version, or choose" in err


async def test_a_file_with_rows_of_another_version_ends_the_server(tmp_path: Path) -> None:
    store = sqlite_at(tmp_path)
    assert (await phalanx("token", "list", f"--store={store}"))[0] == 0
    with sqlite3.connect(store.removeprefix("sqlite:")) as db:
        db.execute("INSERT INTO queues (name, doc) VALUES ('lab', '{}')")
    db.close()
    status, _, err = await phalanx("serve", "--port=0", f"--store={store}")
    assert (status, "Traceback" in err) == (1, False)
    assert "one of its rows cannot be read" in err


async def test_a_certificate_of_the_operator_is_loaded_again_when_its_files_change(
    start: Start, tmp_path: Path, own_certificate: None
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    flags = (f"--tls-cert={cert}", f"--tls-key={key}")
    server = await start(sqlite_at(tmp_path), "only", *flags)
    await server.line("leading")
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with async_http_client(server.url, verify=trust) as client:
        assert (await client.get("/healthz")).status_code == 200
    renewed = Authority.create(datetime.now(UTC))
    new = new_key()
    cert.write_text(to_pem(renewed.sign_server(new.public_key(), ["127.0.0.1"], datetime.now(UTC))))
    key.write_text(key_to_pem(new))
    await server.line("server certificate loaded")
    trust = ssl.create_default_context(cadata=to_pem(renewed.certificate))
    async with async_http_client(server.url, verify=trust) as client:
        assert (await client.get("/healthz")).status_code == 200


async def test_a_certificate_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    status, _, err = await phalanx(
        "serve", "--store=memory", "--port=0", "--tls-cert=/nowhere.pem", "--tls-key=/nowhere.key"
    )
    assert status == 2
    assert "/nowhere.pem" in err
    assert "Traceback" not in err


async def test_the_version_is_printed() -> None:
    status, out, _ = await phalanx("--version")
    assert (status, out) == (0, "phalanx 0.1.0\n")


BROKEN = """
from phalanx.cli import main
from phalanx.engine.engine import Engine

async def broken(self):
    raise RuntimeError("bug: on purpose")

Engine.run = broken
main()
"""


async def test_a_failed_part_is_logged_and_ends_the_server(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BROKEN, "serve", f"--store={sqlite_at(tmp_path)}", "--port=0"),
        "--log-format=json",
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    _, err = await within(PATIENCE_S, process.communicate())
    assert process.returncode == 1
    [line] = [line for line in map(json.loads, err.splitlines()) if line["level"] == "critical"]
    assert line["part"] == "engine"
    assert "bug: on purpose" in line["exception"]
