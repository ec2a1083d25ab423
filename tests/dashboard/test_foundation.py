"""The dashboard as a whole: its files, its policy, signing in, its events."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, Route, expect

from phalanx.api import stream
from phalanx.dashboard.files import dashboard_files, dashboard_version
from phalanx.host.clock import wall_clock
from phalanx.identity.token_registry import TokenRegistry
from phalanx.identity.tokens import TokenRequest, new_token
from phalanx.store.memory import MemoryDatabase, MemoryStore
from tests.dashboard.pages import (
    HIDE,
    NOTE_FIRST_VIEW,
    PATIENCE_MS,
    accessibility_problems,
    open_page,
)
from tests.integration.api.serving import Running, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: What would make a string of the server's into HTML or a script, or is refused by the policy.
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|"
    r"setAttribute\(\"style|createContextualFragment|DOMParser|srcdoc|javascript:"
)
EVIL = "<img src=x onerror=window.hacked=1>"


class Locked:
    """A server that requires tokens, and the secrets of the tokens by name."""

    def __init__(self, running: Running, store: MemoryStore, secrets: dict[str, str]) -> None:
        self.running = running
        self.store = store
        self.secrets = secrets
        self.url = running.url


@pytest_asyncio.fixture(loop_scope="session")
async def locked() -> AsyncIterator[Locked]:
    store = MemoryStore(clock=wall_clock)
    secrets = {}
    for request in (
        TokenRequest(name="root", role="admin"),
        TokenRequest(name="ada", namespaces=("ml",)),
        TokenRequest(name="rack", role="worker", workers="*"),
    ):
        created = new_token(request, wall_clock())
        await store.add_token(created.token)
        secrets[request.name] = created.secret
    tokens = TokenRegistry(store, open_on_loopback=False)
    async with serving(store, auth=tokens, tokens=tokens) as running:
        yield Locked(running, store, secrets)


async def sign_in(page: Page, url: str, token: str) -> None:
    await page.goto(url)
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()


# Files


async def test_the_page_is_small_and_lets_no_string_become_html() -> None:
    files = dashboard_files()
    assert sum(len(file.content) for file in files.values()) <= 300_000
    for name, file in files.items():
        code = re.sub(r"^\s*//.*$", "", file.content.decode(), flags=re.MULTILINE)
        assert not UNSAFE.search(code), name
    html = files["index.html"].content.decode()
    assert not re.search(r"<style|style=|\son\w+=|https?:", html)
    linked = set(re.findall(r'"/dashboard/\w{16}/([^"]+)"', html))
    assert linked == {"css/app.css", "icon.svg", "js/main.js"}
    # All modules are part of a script: a browser takes longer for many files than for one.
    assert linked | {"index.html", "js/stream-worker.js", "js/server-probe.js"} == set(files)
    # The wheel has what the folder has.
    assert (resources.files("phalanx.dashboard") / "static" / "index.html").is_file()


async def test_a_page_that_opens_the_dashboard_keeps_no_handle_of_its_window(
    cluster: Running,
) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    link["Sec-Fetch-Dest"] = "document"
    typed = {"Sec-Fetch-Site": "none"}
    for headers, policy in ((link, "same-origin"), ({}, "same-origin"), (typed, None)):
        answer = await cluster.client.get("/", headers=headers)
        assert answer.status_code == 200
        assert answer.headers.get("cross-origin-opener-policy") == policy


async def test_files_are_cached_by_their_etag_and_protected_by_a_policy(cluster: Running) -> None:
    answer = await cluster.client.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = await cluster.client.get("/", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    script = await cluster.client.get(f"/dashboard/{dashboard_version()}/js/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    assert script.headers["content-encoding"] == "gzip"
    plain = await cluster.client.get(script.url.path, headers={"Accept-Encoding": "identity"})
    assert plain.content == script.content == dashboard_files()["js/main.js"].content
    assert "content-encoding" not in plain.headers
    assert plain.headers["etag"] != script.headers["etag"]
    # A page of another version gets this server's file, and does not keep it.
    other = await cluster.client.get("/dashboard/0123456789abcdef/js/main.js")
    assert (other.content, other.headers["cache-control"]) == (script.content, "no-cache")
    for path in ("/dashboard/x/../files.py", "/dashboard/x/js", "/dashboard/x/js/%2e%2e/app.css"):
        assert (await cluster.client.get(path)).status_code == 404
    # What tasks write is never taken for a page.
    assert (await cluster.client.get("/jobs")).headers["x-content-type-options"] == "nosniff"


async def test_a_server_without_the_dashboard_serves_no_file_of_it() -> None:
    store = MemoryStore(clock=wall_clock)
    async with serving(store) as running:
        running.services.info = type(running.services.info)(has_dashboard=False)
        for path in ("/", "/dashboard/x/js/main.js"):
            assert (await running.client.get(path)).status_code == 404


#: Whether all of these paths have been answered. A page may be shown before some of its data.
HAS_LOADED = """paths => {
    const names = performance.getEntriesByType("resource").map(each => each.name);
    return paths.every(path => names.includes(location.origin + path));
}"""

#: [path, bytes that came over the network] of all requests before the first view.
LOADED = """async () => {
    const drawnAt = await window.drawnView;
    return performance.getEntriesByType("resource")
        .filter(each => each.startTime <= drawnAt)
        .map(each => [each.name.replace(location.origin, ""), each.transferSize]);
}"""


@pytest.mark.parametrize(
    ("address", "data"),
    [
        ("overview", {"/overview", "/usage?window=hour", "/shares", "/cost"}),
        ("jobs?phase=pending", {"/jobs?phase=pending&limit=100", "/crons"}),
        ("cluster", {"/map", "/shares", "/overview"}),
        ("queues", {"/shares"}),
    ],
)
async def test_a_first_view_asks_for_each_answer_once_and_the_next_one_for_no_file(
    cluster: Running, page: Page, address: str, data: set[str]
) -> None:
    await page.add_init_script(NOTE_FIRST_VIEW)
    await page.goto(f"{cluster.url}/#/{address}")
    await page.wait_for_function(HAS_LOADED, arg=[*data])
    loaded = await page.evaluate(LOADED)
    paths = [path for path, _ in loaded if not path.startswith(("/dashboard/", "/events"))]
    wanted = {*data, "/whoami"}
    assert sorted(path for path in paths if path != "/servers") == sorted(wanted)
    files = [path for path, _ in loaded if path.startswith("/dashboard/")]
    assert len(files) == len(set(files))
    # The browser asks for none of them again.
    await page.goto("about:blank")
    await page.goto(f"{cluster.url}/#/{address}")
    again = await page.evaluate(LOADED)
    assert [path for path, size in again if size and path in files] == []


# Sessions


async def session_cookie(locked: Locked, name: str) -> str:
    answer = await locked.running.client.post("/session", json={"token": locked.secrets[name]})
    assert answer.status_code == 200, answer.text
    header = answer.headers["set-cookie"]
    assert "HttpOnly" in header
    assert "SameSite=strict" in header
    assert locked.secrets[name] not in header
    locked.running.client.cookies.clear()
    return header.partition(";")[0]


async def test_a_session_has_the_rights_of_its_token_and_ends_with_it(locked: Locked) -> None:
    call = locked.running.call
    cookie = await session_cookie(locked, "ada")
    reply = await call("GET", "/whoami", cookie=cookie)
    assert reply.body == {
        "name": "ada",
        "role": "user",
        "namespaces": ["ml"],
        "namespace": "ml",
        "has_session": True,
    }
    own = {"cookie": cookie, "origin": locked.url}
    job = {"command": "true", "namespace": "other"}
    assert (await call("POST", "/jobs", job, **own)).status == 403
    assert (await call("POST", "/jobs", {**job, "namespace": "ml"}, **own)).status == 201
    assert (await call("GET", "/tokens", cookie=cookie)).status == 403
    root = {"authorization": f"Bearer {locked.secrets['root']}"}
    listed = (await call("GET", "/tokens", **root)).body
    assert [each["role"] for each in listed if each["name"].startswith("session:")] == ["session"]
    assert (await call("DELETE", "/tokens/ada", **root)).status == 204
    assert (await call("GET", "/whoami", cookie=cookie)).status == 401


async def test_a_session_ends_when_its_browser_signs_out(locked: Locked) -> None:
    cookie = await session_cookie(locked, "root")
    other = await session_cookie(locked, "root")
    own = {"cookie": cookie, "origin": locked.url}
    assert (await locked.running.call("DELETE", "/session", **own)).status == 200
    assert (await locked.running.call("GET", "/whoami", cookie=cookie)).status == 401
    assert (await locked.running.call("GET", "/whoami", cookie=other)).status == 200


async def test_a_session_ends_when_the_new_secret_of_its_token_is_used(locked: Locked) -> None:
    cookie = await session_cookie(locked, "ada")
    root = {"authorization": f"Bearer {locked.secrets['root']}"}
    rotated = (await locked.running.call("POST", "/tokens/ada/rotate", **root)).body
    assert (await locked.running.call("GET", "/whoami", cookie=cookie)).status == 200
    new = {"authorization": f"Bearer {rotated['secret']}"}
    assert (await locked.running.call("GET", "/whoami", **new)).status == 200
    assert (await locked.running.call("GET", "/whoami", cookie=cookie)).status == 401


async def test_only_users_and_admins_sign_in(locked: Locked) -> None:
    post = locked.running.client.post
    assert (await post("/session", json={"token": locked.secrets["rack"]})).status_code == 403
    assert (await post("/session", json={"token": "phx_wrong"})).status_code == 401
    assert (await post("/session", json={})).status_code == 400


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"sec-fetch-site": "cross-site"}, 403),
        ("POST", {"sec-fetch-site": "same-site"}, 403),  # another port of this host
        ("POST", {}, 403),
        ("POST", {"sec-fetch-site": "same-origin"}, 201),
        ("GET", {"origin": "http://evil.example"}, 403),
        ("GET", {"sec-fetch-site": "cross-site"}, 403),
        ("GET", {}, 200),
    ],
)
async def test_a_cookie_is_only_good_for_pages_of_this_server(
    locked: Locked, method: str, headers: dict[str, str], status: int
) -> None:
    cookie = await session_cookie(locked, "root")
    given = {name.replace("-", "_"): value for name, value in headers.items()}
    body = {"command": "true"} if method == "POST" else None
    reply = await locked.running.call(method, "/jobs", body, cookie=cookie, **given)
    assert reply.status == status, reply.body


async def test_people_sign_in_with_a_token_that_the_page_does_not_keep(
    locked: Locked, page: Page
) -> None:
    await sign_in(page, locked.url, "phx_wrong")
    await expect(page.get_by_role("alert")).to_contain_text("unknown")
    assert not await accessibility_problems(page)
    await page.get_by_label("Token").fill(locked.secrets["ada"])
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("heading", name="Overview", level=1).wait_for()
    kept = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert locked.secrets["ada"] not in kept + await page.evaluate("document.cookie") + page.url
    await page.reload()
    await page.get_by_role("button", name="Sign out ada").click()
    await page.get_by_label("Token").wait_for()
    await page.reload()
    await page.get_by_label("Token").wait_for()


# Events and pages


async def submit(cluster: Running, name: str = "train") -> str:
    job = {"name": name, "namespace": "ml", "roles": {"worker": {"command": "true"}}}
    reply = await cluster.call("POST", "/jobs", job)
    assert reply.status == 201, reply.body
    return str(reply.body["id"])


async def test_jobs_appear_in_the_list_without_a_reload(cluster: Running, page: Page) -> None:
    await open_page(page, cluster.url, "jobs", "Jobs")
    await page.get_by_text("No job matches the filters.").wait_for()
    await page.get_by_text("live", exact=False).first.wait_for()
    await submit(cluster, "first")
    await page.get_by_role("link", name="ml/first").wait_for()
    assert not await accessibility_problems(page)


async def test_filters_are_in_the_address(cluster: Running, page: Page) -> None:
    await submit(cluster)
    await open_page(page, cluster.url, "jobs", "Jobs")
    await page.get_by_label("Phase").select_option("running")
    await page.get_by_text("No job matches the filters.").wait_for()
    assert page.url.endswith("#/jobs?phase=running")
    await page.reload()
    await expect(page.get_by_label("Phase")).to_have_value("running")
    await page.get_by_text("No job matches the filters.").wait_for()
    # The link for the keyboard stays on the page.
    await page.get_by_role("link", name="Skip to the content").press("Enter")
    await expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("#/jobs?phase=running")
    await page.goto(f"{cluster.url}/#/nowhere")
    await expect(page.get_by_text("There is no page nowhere.")).to_be_visible()


async def test_tabs_share_one_stream_of_events(
    cluster: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    start = stream._start

    def begin(request: Any, *given: Any) -> int:
        begun.append(request)
        return start(request, *given)

    monkeypatch.setattr(stream, "_start", begin)
    context: BrowserContext = await browser.new_context()
    pages = [await context.new_page() for _ in range(8)]
    for each in pages:
        await open_page(each, cluster.url, "jobs", "Jobs")
    await submit(cluster, "shared")
    for each in pages:  # more than a browser opens connections to a host
        await each.bring_to_front()
        await each.get_by_role("link", name="ml/shared").wait_for(timeout=PATIENCE_MS)
    await context.close()
    assert len(begun) == 1


async def test_a_hidden_tab_loads_nothing_until_it_is_shown(cluster: Running, page: Page) -> None:
    await open_page(page, cluster.url, "jobs", "Jobs")
    await page.get_by_text("· live").wait_for()
    watching = await page.context.new_page()
    await open_page(watching, cluster.url, "jobs", "Jobs")
    await page.evaluate(HIDE, True)
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    await submit(cluster, "unseen")
    await watching.get_by_role("link", name="ml/unseen").wait_for()
    assert [url for url in loaded if "/dashboard/" not in url] == []
    await page.evaluate(HIDE, False)
    await page.get_by_role("link", name="ml/unseen").wait_for()


async def test_a_tab_that_is_hidden_while_it_loads_asks_for_nothing_more(
    cluster: Running, page: Page
) -> None:
    reached, released = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        reached.set()
        await released.wait()
        await route.continue_()

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.route("**/jobs?*", hold)
    await page.goto(f"{cluster.url}/#/jobs")
    await reached.wait()
    await page.evaluate(HIDE, True)
    released.set()
    await page.get_by_role("heading", name="Jobs", exact=True).wait_for()
    assert f"{cluster.url}/crons" not in asked
    async with page.expect_request("**/crons"):
        await page.evaluate(HIDE, False)


#: The first list of jobs is cut off after its head.
CUT = """
const complete = window.fetch;
let isCut = false;
window.fetch = (url, options) => {
    if (isCut || !String(url).startsWith("/jobs?")) return complete(url, options);
    isCut = true;
    const error = new TypeError("network error");
    return Promise.resolve(new Response(new ReadableStream({ start: body => body.error(error) })));
};
"""


async def test_an_answer_that_is_cut_off_is_asked_for_again(cluster: Running, page: Page) -> None:
    await submit(cluster, "whole")
    await page.add_init_script(CUT)
    await page.goto(f"{cluster.url}/#/jobs")
    await page.get_by_role("link", name="ml/whole").wait_for()
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_a_page_whose_server_answers_looks_for_no_other_server(
    cluster: Running, page: Page
) -> None:
    await page.clock.install()
    looked: list[str] = []
    page.on("request", lambda request: looked.append(request.url))
    await open_page(page, cluster.url, "jobs", "Jobs")
    await page.get_by_text("· live").wait_for()
    looked.clear()
    await page.clock.fast_forward(10_000)
    await submit(cluster, "later")
    await page.get_by_role("link", name="ml/later").wait_for()
    assert f"{cluster.url}/readyz" not in looked


async def test_a_hidden_tab_sends_nothing_while_its_server_is_away(page: Page) -> None:
    await page.clock.install()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    async with serving(MemoryStore(clock=wall_clock)) as server:
        await open_page(page, server.url, "jobs", "Jobs")
        await page.get_by_text("· live").wait_for()
    await page.get_by_text("reconnecting …").wait_for()
    await page.evaluate(HIDE, True)
    sent.clear()
    await page.clock.run_for(60_000)
    assert sent == []
    async with page.expect_request("**/readyz"):
        await page.evaluate(HIDE, False)


async def test_the_page_of_a_standby_moves_to_the_leader(page: Page) -> None:
    database = MemoryDatabase()

    def handle() -> MemoryStore:
        return MemoryStore(clock=wall_clock, database=database)

    async with serving(handle()) as leader, serving(handle(), leads=False) as standby:
        await submit(leader, "here")
        await page.goto(f"{standby.url}/#/jobs?phase=pending")
        await page.get_by_role("link", name="ml/here").wait_for()
        assert page.url == f"{leader.url}/#/jobs?phase=pending"
        await page.goto("about:blank")


async def test_a_user_sees_the_names_of_its_own_namespaces_only(locked: Locked) -> None:
    call = locked.running.call
    root = {"authorization": f"Bearer {locked.secrets['root']}"}
    worker = {"id": "w-1", "resources": {"gpu": 2}, "slots": 2}
    await call("POST", "/workers/register", worker, **root)
    for namespace in ("ml", "secret"):
        for name in ("runs", "waits"):
            role = {"command": "true", "resources": {"gpu": 1 if name == "runs" else 2}}
            job = {"name": name, "namespace": namespace, "roles": {"worker": role}}
            assert (await call("POST", "/jobs", job, **root)).status == 201
    await locked.running.until(
        lambda seen: sum(gang.job.phase == "starting" for gang in seen.gangs.values()) == 2
    )
    cookie = await session_cookie(locked, "ada")
    for path in ("/map", "/overview", "/shares", "/jobs"):
        reply = await call("GET", path, cookie=cookie)
        assert reply.status == 200
        assert "secret/" not in json.dumps(reply.body), path
    seen = (await call("GET", "/map", cookie=cookie)).body
    assert sorted(job.get("name", "hidden") for job in seen["jobs"]) == ["hidden", "ml/runs"]


async def test_names_of_jobs_are_text(cluster: Running, page: Page) -> None:
    job = await submit(cluster, "evil")
    # No name of a job has such characters; the page must not rely on it.
    await page.route(
        re.compile(r"/jobs(/j-\w+)?(\?.*)?$"),
        lambda route: route.fulfill(
            body=json.dumps({"jobs": [evil_job(job)], "cursor": None}),
            content_type="application/json",
        ),
    )
    await open_page(page, cluster.url, "jobs", "Jobs")
    await page.get_by_role("link", name=EVIL).wait_for()
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main img").count() == 0


def evil_job(job: str) -> dict[str, object]:
    return {
        "id": job,
        "name": EVIL,
        "namespace": EVIL,
        "queue": EVIL,
        "owner": EVIL,
        "phase": "pending",
        "priority": 0,
        "size": 1,
        "attempt": 0,
        "failures": 0,
        "created_at": "2026-01-01T00:00:00Z",
        "reason": {"message": EVIL},
    }


async def test_pages_fit_a_phone_and_a_zoom_of_200_percent(cluster: Running, page: Page) -> None:
    await submit(cluster)
    for width in (360, 640):  # 640 is what 1280 pixels have at 200 %
        await page.set_viewport_size({"width": width, "height": 800})
        for address, heading in (("jobs", "Jobs"), ("overview", "Overview"), ("queues", "Queues")):
            await open_page(page, cluster.url, address, heading)
            overflow = await page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert overflow <= 0, (width, address)
            # No cell is cut off, so that reasons and weights are seen without scrolling.
            cut = "nodes => nodes.filter(each => each.scrollWidth > each.clientWidth).length"
            assert await page.locator(".scroll:has(.stacks)").evaluate_all(cut) == 0, (
                width,
                address,
            )
