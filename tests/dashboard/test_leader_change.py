"""A page that is open while its server is killed: the server comes back, or a standby leads."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Page

from tests.dashboard.pages import HIDE, open_page
from tests.integration.server.processes import ServerProcess, phalanx, sqlite_at
from tests.plain_http import async_http_client
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_restarted_server_is_followed_again_without_a_reload_and_only_by_visible_tabs(
    page: Page, tmp_path: Path
) -> None:
    port = f"--port={free_port()}"
    server = await ServerProcess.start(sqlite_at(tmp_path), "one", port)
    try:
        await server.line("leading")
        await open_page(page, server.url, "jobs", "Jobs")
        await page.get_by_text("· live").wait_for()
        await page.evaluate("window.kept = true")
        hidden = await page.context.new_page()
        await open_page(hidden, server.url, "jobs", "Jobs")
        await hidden.get_by_text("· live").wait_for()
        await hidden.evaluate(HIDE, True)
        sent: list[str] = []
        hidden.on("request", lambda request: sent.append(request.url))
        await server.kill()
        await page.get_by_text("reconnecting …").wait_for()
        server = await ServerProcess.start(sqlite_at(tmp_path), "one", port)
        await server.line("leading")
        await page.get_by_text("· live").wait_for()
        async with async_http_client(server.url) as client:
            await client.post("/jobs", json={"name": "later", "roles": {"w": {"command": "true"}}})
        await page.get_by_role("link", name="default/later").wait_for()
        assert await page.evaluate("window.kept")
        assert sent == []
        await hidden.evaluate(HIDE, False)
        await hidden.get_by_role("link", name="default/later").wait_for()
    finally:
        await server.kill()


async def test_a_page_whose_server_was_killed_continues_at_the_next_leader(
    page: Page, tmp_path: Path
) -> None:
    store = sqlite_at(tmp_path)
    _, token, _ = await phalanx("token", "create", "root", "--role=admin", f"--store={store}")
    flags = ("--loopback-open=false", "--lease=5s")
    one = await ServerProcess.start(store, "one", *flags)
    await one.line("leading")
    two = await ServerProcess.start(store, "two", *flags)
    await two.line("standing by")
    try:
        await page.goto(f"{one.url}/#/jobs?phase=pending")
        await page.get_by_label("Token").fill(token.strip())
        await page.get_by_role("button", name="Sign in").click()
        # On a busy machine the other server may lead by now.
        shown = page.get_by_text(re.compile(r"leader (one|two) · 1 standby · live"))
        is_first = "leader one" in (await shown.text_content() or "")
        leader, standby = (one, two) if is_first else (two, one)
        await leader.kill()
        await page.get_by_text(re.compile(f"leader {standby.name} .*· live")).wait_for()
        # The same page with its filter, and the session is that of the cookie.
        assert page.url == f"{standby.url}/#/jobs?phase=pending"
        await page.get_by_role("button", name="Sign out root").wait_for()
        headers = {"Authorization": f"Bearer {token.strip()}"}
        async with async_http_client(standby.url, headers=headers) as client:
            await client.post("/jobs", json={"name": "later", "roles": {"w": {"command": "true"}}})
        await page.get_by_role("link", name="default/later").wait_for()
    finally:
        await one.kill()
        await two.kill()


async def test_only_the_probe_may_reach_other_servers(tmp_path: Path) -> None:
    store = sqlite_at(tmp_path)
    server = await ServerProcess.start(store, "one")
    try:
        await server.line("leading")
        async with async_http_client(server.url) as client:
            policies = [
                (await client.get(path)).headers["content-security-policy"]
                for path in ("/", "/dashboard/x/js/main.js", "/dashboard/x/js/server-probe.js")
            ]
        assert policies[0] == policies[1]
        assert policies[0].startswith("default-src 'self';")
        assert "connect-src" not in policies[0]
        assert policies[2] == f"default-src 'none'; connect-src {server.url}"
    finally:
        await server.kill()
