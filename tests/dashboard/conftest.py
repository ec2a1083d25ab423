"""One browser for all tests of the dashboard, and a page of its own for each."""

import shutil
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import HOUR
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from tests.dashboard.pages import PATIENCE_MS
from tests.integration.api.serving import Running, quick, serving
from tests.requirements import require_programs

expect.set_options(timeout=PATIENCE_MS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    require_programs("chromium")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield chromium
        await chromium.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page that fails its test if a script of it fails or the policy refuses something."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    opened = await context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console",
        lambda line: (
            problems.append(line.text)
            if "Content Security Policy" in line.text or "TypeError" in line.text
            else None
        ),
    )
    yield opened
    await context.close()
    assert not problems


@pytest_asyncio.fixture(loop_scope="session")
async def cluster() -> AsyncIterator[Running]:
    """A server in memory that requires no token, and waits for workers that do nothing."""
    settings = quick(lost_after_s=3600.0, core=CoreSettings(accept=HOUR))
    async with serving(MemoryStore(clock=wall_clock), settings=settings) as running:
        yield running
