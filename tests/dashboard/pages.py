"""What tests do with a page of the dashboard."""

from functools import cache
from importlib import resources
from typing import Any

from playwright.async_api import Page

PATIENCE_MS = 60_000

#: A script for every new document. `window.drawnView` becomes the time in ms from the beginning of
#: the navigation until the document had the data of the page, and `window.firstView` that until the
#: first frame with them was on the screen.
NOTE_FIRST_VIEW = """
window.drawnView = new Promise(resolve => {
    new MutationObserver((_, observer) => {
        const texts = document.querySelectorAll("main[aria-busy=false] :is(h1, h2, th, td, p)");
        texts.forEach(each => each.setAttribute("elementtiming", "first view"));
        if (!texts.length) return;
        observer.disconnect();
        resolve(performance.now());
    }).observe(document, { subtree: true, childList: true, attributeFilter: ["aria-busy"] });
});
window.firstView = new Promise(resolve => {
    new PerformanceObserver(list => {
        resolve(Math.max(...list.getEntries().map(each => each.renderTime)));
    }).observe({ type: "element", buffered: true });
});
"""

#: Makes a page believe that its tab is hidden or shown.
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""

#: Problems of these kinds keep people from using a page.
_SERIOUS = ("serious", "critical")


@cache
def _axe() -> str:
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")


async def open_page(page: Page, url: str, address: str, heading: str) -> None:
    """Open an address such as `jobs?phase=pending`, and wait for its heading."""
    await page.goto(f"{url}/#/{address}")
    await page.get_by_role("heading", name=heading, exact=True, level=1).wait_for()


async def accessibility_problems(page: Page) -> list[str]:
    """What axe finds that is serious, each with the elements."""
    # A script tag would be refused by the policy of the page; this is not one.
    await page.evaluate(_axe())
    found: dict[str, Any] = await page.evaluate("axe.run()")
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
    ]
