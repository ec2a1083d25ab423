"""What web pages can do to a server without tokens, in a real browser: nothing."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest_asyncio
from playwright.async_api import Browser, Page, Route, async_playwright

from tests.integration.server.processes import ServerProcess, Start, sqlite_at
from tests.integration.server.waiting import PATIENCE_S
from tests.plain_http import async_http_client
from tests.requirements import require_programs

EVIL = "evil.example"
PAGE = "<!doctype html><title>A harmless page</title>"
JOB = '{"command": "true"}'

#: Sends a request from the page, and returns the status, or the kind of failure.
FETCH = """async ([url, options]) => {
    try { const answer = await fetch(url, options); return answer.status; }
    catch (error) { return error.name; }
}"""
#: Submits a form whose body is JSON but for a harmless field, and waits for the answer's page.
FORM = """([url, job]) => {
    const form = document.createElement("form");
    form.method = "POST"; form.action = url; form.enctype = "text/plain";
    const field = document.createElement("input");
    field.name = job.slice(0, -1) + ', "name": "a'; field.value = '"}';
    form.append(field); document.body.append(form); form.submit();
}"""
#: Loads an image, and returns when the browser has its answer.
IMAGE = """url => new Promise(resolve => {
    const image = new Image();
    image.onload = image.onerror = () => resolve();
    image.src = url;
})"""


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    require_programs("chromium")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            timeout=1000 * PATIENCE_S,
            args=[
                "--no-sandbox",
                f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
                # Newer versions protect loopback themselves; the server must not rely on it.
                "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
            ],
        )
        yield chromium
        await chromium.close()


@pytest_asyncio.fixture
async def evil_url() -> AsyncIterator[str]:
    """A page of another server, on a port of its own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{PAGE}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://{EVIL}:{server.sockets[0].getsockname()[1]}/"


async def serve(start: Start, folder: Path) -> ServerProcess:
    server = await start(sqlite_at(folder), "only")
    await server.line("leading")
    return server


async def count_jobs(server: ServerProcess) -> int:
    async with async_http_client(server.url) as client:
        return len((await client.get("/jobs")).json()["jobs"])


async def attack(page: Page, url: str) -> list[object]:
    """Every way in which the script of a page can send a request."""
    # A type that pages may send to other servers, and in which the server accepts JSON.
    post = {"method": "POST", "body": JOB}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    attempts: list[dict[str, object]] = [
        {**post, "headers": form},
        {**post, "headers": form, "mode": "no-cors"},
        {**post, "headers": form, "referrerPolicy": "no-referrer"},
        {**post, "headers": {**form, "Authorization": "Basic eA=="}},
        {**post, "headers": {**form, "Authorization": "Bearer x"}},
        {"method": "GET", "mode": "no-cors"},
        {"method": "GET", "headers": {"Authorization": "Basic eA=="}},
    ]
    return [await page.evaluate(FETCH, [f"{url}/jobs", options]) for options in attempts]


async def test_the_page_of_another_server_can_submit_and_read_nothing(
    start: Start, tmp_path: Path, browser: Browser, evil_url: str
) -> None:
    server = await serve(start, tmp_path)
    page = await browser.new_page()
    await page.goto(evil_url)
    answers = await attack(page, server.url)
    # A page is not told the status of a request in the mode no-cors: 0.
    assert set(answers) <= {"TypeError", 0, 403}
    async with page.expect_navigation() as navigation:
        await page.evaluate(FORM, [f"{server.url}/jobs", JOB])
    answer = await navigation.value
    assert answer is not None
    assert answer.status == 403
    assert await count_jobs(server) == 0
    # A link or an image of the page claims no task.
    await page.goto(evil_url)
    async with async_http_client(server.url) as client:
        await client.post("/jobs", json={"command": "true"})
        await page.evaluate(IMAGE, f"{server.url}/jobs/next")
        async with page.expect_navigation() as navigation:
            await page.evaluate("url => { location.href = url }", f"{server.url}/jobs/next")
        answer = await navigation.value
        assert answer is not None
        assert answer.status == 403
        [job] = (await client.get("/jobs")).json()["jobs"]
        assert job["phase"] == "pending"


async def test_a_page_whose_name_is_rebound_to_this_host_can_submit_nothing(
    start: Start, tmp_path: Path, browser: Browser
) -> None:
    server = await serve(start, tmp_path)
    own = f"http://{EVIL}:{urlsplit(server.url).port}"
    page = await browser.new_page()

    async def first_answer(route: Route) -> None:
        await route.fulfill(body=PAGE, content_type="text/html")

    # The page is loaded from its own server; then its name resolves to this host.
    await page.route(f"{own}/", first_answer)
    await page.goto(f"{own}/")
    assert set(await attack(page, own)) == {403}
    assert await count_jobs(server) == 0


async def test_the_servers_own_pages_work(start: Start, tmp_path: Path, browser: Browser) -> None:
    server = await serve(start, tmp_path)
    port = urlsplit(server.url).port
    page = await browser.new_page()
    for name in ("127.0.0.1", "localhost"):
        own = f"http://{name}:{port}"
        answer = await page.goto(f"{own}/healthz")
        assert answer is not None
        assert answer.status == 200
        assert await page.evaluate(FETCH, [f"{own}/jobs", {"method": "POST", "body": JOB}]) == 415
        options = {"method": "POST", "body": JOB, "headers": {"Content-Type": "application/json"}}
        assert await page.evaluate(FETCH, [f"{own}/jobs", options]) == 201
    assert await count_jobs(server) == 2
