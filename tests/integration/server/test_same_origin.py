"""A browser on the server's host shows many pages; none of them may use a server without tokens."""

from pathlib import Path

import pytest

from tests.integration.raw_http import RawReply, ask
from tests.integration.server.processes import ServerProcess, Start, phalanx, sqlite_at

JOB = b'{"command": "true"}'
OWN = "Host: localhost"

#: The headers of a request, and the header that the refusal names; empty if it is accepted.
CASES: tuple[tuple[str, str], ...] = (
    # Names of this server
    (OWN, ""),
    ("Host: LocalHost:8080", ""),
    ("Host: 127.0.0.1:9999", ""),
    ("Host: 127.8.7.6", ""),
    ("Host: [::1]:8080", ""),
    ("Host: [::ffff:127.0.0.1]", ""),
    ("Host: phalanx.localhost", ""),
    ("Host: known.example:8080", ""),
    # Other names, which may resolve to loopback
    ("", "Host"),
    ("Host:", "Host"),
    ("Host: evil.example", "Host"),
    ("Host: localhost.evil.example", "Host"),
    ("Host: evil-localhost", "Host"),
    ("Host: 127.0.0.1.nip.io", "Host"),
    ("Host: localhost.", "Host"),
    ("Host: .localhost", "Host"),
    ("Host: known.example.", "Host"),
    ("Host: not-known.example", "Host"),
    ("Host: 0.0.0.0", "Host"),
    ("Host: 2130706433", "Host"),
    ("Host: 0x7f.1", "Host"),
    ("Host: 127.1", "Host"),
    ("Host: [::]", "Host"),
    ("Host: [::ffff:10.0.0.1]", "Host"),
    ("Host: [::1%25lo]", "Host"),
    ("Host: [evil", "Host"),
    ("Host: localhost@evil.example", "Host"),
    ("Host: evil.example@localhost", "Host"),
    ("Host: evil.example#localhost", "Host"),
    ("Host: localhost/evil", "Host"),
    ("Host: localhost:80:80", "Host"),
    ("Host: localhost, evil.example", "Host"),
    ("Host: evil.example\nHost: localhost", "Host"),
    ("Host: localhost\nHost: localhost", "Host"),
    # Pages of other origins
    (f"{OWN}\nOrigin: http://localhost", ""),
    (f"{OWN}\nOrigin: https://evil.example", "Origin"),
    (f"{OWN}\nOrigin: https://localhost", "Origin"),
    (f"{OWN}\nOrigin: http://localhost:1", "Origin"),
    (f"{OWN}\nOrigin: ftp://localhost", "Origin"),
    (f"{OWN}\nOrigin: http://localhost@evil.example", "Origin"),
    (f"{OWN}\nOrigin: null", "Origin"),
    (f"{OWN}\nOrigin:", "Origin"),
    (f"{OWN}\nOrigin: http://localhost\nOrigin: http://localhost", "Origin"),
    ("Host: 127.0.0.1\nOrigin: http://localhost", "Origin"),
    (f"{OWN}\nSec-Fetch-Site: none", ""),
    (f"{OWN}\nSec-Fetch-Site: same-origin\nSec-Fetch-Mode: cors", ""),
    (f"{OWN}\nSec-Fetch-Site: same-site", "Sec-Fetch-Site"),
    (f"{OWN}\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors", "Sec-Fetch-Site"),
    (f"{OWN}\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate", "Sec-Fetch-Site"),
    (f"{OWN}\nSec-Fetch-Site: other", "Sec-Fetch-Site"),
    (f"{OWN}\nSec-Fetch-Site: none\nSec-Fetch-Site: none", "Sec-Fetch-Site"),
    # Requests of other hosts, through a proxy on this one
    (f"{OWN}\nX-Forwarded-For: 127.0.0.1", "X-Forwarded-For"),
    (f"{OWN}\nX-Forwarded-Host: localhost", "X-Forwarded-Host"),
    ("Host: evil.example\nX-Forwarded-Host: localhost", "Host"),
    (f"{OWN}\nForwarded: for=127.0.0.1", "Forwarded"),
    (f"{OWN}\nX-Real-IP: 127.0.0.1", "X-Real-IP"),
)
#: Credentials that are none.
NO_TOKENS = ("Basic eA==", "Basic", "Bearer", "Bearer phx_wrong", "Negotiate x", "phx_wrong", "")
#: One path of each way through the server.
PATHS = (
    "GET /jobs",
    "GET /metrics",
    "GET /readyz",
    "GET /healthz",
    "GET /openapi",
    "GET /openapi/openapi.json",
    "GET /events",
    "GET /jobs/next",
    "GET /jobs/j-1/logs",
    "GET /nowhere",
    "OPTIONS /jobs",
    "POST /workers/register",
    "POST /workers/w-1/sync",
    "POST /workers/w-1/output?task=j-1.0&attempt=1&offset=0",
)


def submit(headers: str, target: str = "/jobs") -> str:
    given = f"\n{headers}" if headers else ""
    return f"POST {target} HTTP/1.1\nContent-Length: {len(JOB)}{given}"


async def serve(start: Start, folder: Path) -> ServerProcess:
    server = await start(sqlite_at(folder), "only", "--advertise-url=http://known.example")
    await server.line("leading")
    return server


async def jobs_of(server: ServerProcess) -> list[object]:
    reply: RawReply = await ask(server.url, f"GET /jobs?limit=1000 HTTP/1.1\n{OWN}")
    jobs: list[object] = reply.body["jobs"]
    return jobs


async def test_without_a_token_only_requests_of_this_host_are_served(
    start: Start, tmp_path: Path
) -> None:
    server = await serve(start, tmp_path)
    accepted = 0
    for headers, wrong in CASES:
        reply = await ask(server.url, submit(headers), JOB)
        if not wrong:
            assert reply.status == 201, headers
            accepted += 1
        else:
            assert (reply.status, reply.code) == (403, "foreign_origin"), headers
            assert reply.message.startswith(wrong), headers
        assert len(await jobs_of(server)) == accepted
    named = await ask(server.url, submit("Host: evil.example"), JOB)
    assert "set advertise_url" in named.message


async def test_credentials_that_are_not_a_valid_token_exempt_from_nothing(
    start: Start, tmp_path: Path
) -> None:
    server = await serve(start, tmp_path)
    for credentials in NO_TOKENS:
        given = f"Authorization: {credentials}"
        for foreign in (
            "Host: evil.example",
            f"{OWN}\nOrigin: null",
            f"{OWN}\nSec-Fetch-Site: cross-site",
        ):
            reply = await ask(server.url, submit(f"{foreign}\n{given}"), JOB)
            assert (reply.status, reply.code) == (403, "foreign_origin"), (foreign, given)
        # Nor is the caller taken for one without a token.
        reply = await ask(server.url, submit(f"{OWN}\n{given}"), JOB)
        assert (reply.status, reply.code) == (401, "unauthorised"), given
    assert await jobs_of(server) == []


@pytest.mark.parametrize("foreign", ["Host: evil.example", f"{OWN}\nOrigin: http://evil.example"])
async def test_no_path_is_served_to_another_origin(
    start: Start, tmp_path: Path, foreign: str
) -> None:
    server = await serve(start, tmp_path)
    for path in PATHS:
        reply = await ask(server.url, f"{path} HTTP/1.1\n{foreign}\nAuthorization: Basic eA==")
        assert (reply.status, reply.code) == (403, "foreign_origin"), path


async def test_a_target_with_a_host_of_its_own_is_refused(start: Start, tmp_path: Path) -> None:
    server = await serve(start, tmp_path)
    for target in ("http://evil.example/jobs", "http://localhost/jobs", "evil.example:80"):
        reply = await ask(server.url, submit(OWN, target), JOB)
        assert (reply.status, reply.code) == (400, "invalid"), target
    assert (await ask(server.url, submit(OWN, "//evil.example/jobs"), JOB)).status == 404
    assert await jobs_of(server) == []


async def test_a_valid_token_may_come_from_anywhere(start: Start, tmp_path: Path) -> None:
    store = sqlite_at(tmp_path)
    _, printed, _ = await phalanx("token", "create", "root", "--role=admin", f"--store={store}")
    server = await serve(start, tmp_path)
    token = f"Authorization: Bearer {printed.strip()}"
    for foreign in ("Host: evil.example", f"{OWN}\nOrigin: https://else.example"):
        assert (await ask(server.url, submit(f"{foreign}\n{token}"), JOB)).status == 201
    twice = await ask(server.url, submit(f"{OWN}\n{token}\nAuthorization: Basic eA=="), JOB)
    assert (twice.status, twice.code) == (401, "unauthorised")
