"""A browser on the server's host shows many pages; none of them may submit jobs."""

from pathlib import Path

import httpx

from tests.integration.server.processes import Start, phalanx, sqlite_at

JOB = {"command": "true"}


#: What a request comes with, and how it is answered.
CASES: tuple[tuple[dict[str, str], int], ...] = (
    ({}, 201),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://localhost:1"}, 403),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 201),
    ({"Host": "evil.example"}, 403),
    ({"Host": "[evil"}, 403),
    ({"Host": "localhost:8080"}, 201),
    ({"Host": "phalanx.localhost"}, 201),
    ({"Host": "known.example"}, 201),
)


async def test_without_a_token_a_foreign_page_is_refused(start: Start, tmp_path: Path) -> None:
    server = await start(sqlite_at(tmp_path), "only", "--advertise-url=http://known.example")
    await server.line("leading")
    async with httpx.AsyncClient(base_url=server.url) as client:
        for headers, status in CASES:
            answer = await client.post("/jobs", json=JOB, headers=headers)
            assert answer.status_code == status, headers
            if status == 403:
                assert answer.json()["error"]["code"] == "foreign_origin"


async def test_the_servers_own_pages_and_requests_with_a_token_pass(
    start: Start, tmp_path: Path
) -> None:
    store = sqlite_at(tmp_path)
    _, token, _ = await phalanx("token", "create", "root", "--role=admin", f"--store={store}")
    server = await start(store, "only")
    await server.line("leading")
    async with httpx.AsyncClient(base_url=server.url) as client:
        own = await client.post("/jobs", json=JOB, headers={"Origin": server.url})
        assert own.status_code == 201
        headers = {"Origin": "https://else.example", "Authorization": f"Bearer {token.strip()}"}
        assert (await client.post("/jobs", json=JOB, headers=headers)).status_code == 201
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert (await client.get("/jobs", headers=link)).status_code == 200
