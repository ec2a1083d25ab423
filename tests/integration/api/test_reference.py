"""The page about HTTP: every route is on it, everything on it is a route, and each has its line."""

import re
import shlex
from pathlib import Path

import pytest
from litestar.routes import HTTPRoute

from phalanx.api.app import OPENAPI_PATH, create_app
from phalanx.api.errors import _HTTP_CODES, _KNOWN
from phalanx.api.services import Services
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.host import HostEnvironment
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text("utf-8")
SECTION = re.compile(r"^### `([A-Z]+) (\S+)`$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = {(method, path): text for method, path, text in SECTION.findall(PAGE)}


@pytest.fixture(scope="module")
def routes() -> set[tuple[str, str]]:
    store = MemoryStore(clock=wall_clock)
    engine = Engine(store, HostEnvironment("", "", wall_clock, str))
    app = create_app(Services(engine, AgentSync(engine, store), store, EventBuffer(1)))
    return {
        (method, re.sub(r":\w+(?=})", "", route.path_format))
        for route in app.routes
        if isinstance(route, HTTPRoute) and not route.path.startswith(OPENAPI_PATH)
        for method in route.methods - {"OPTIONS", "HEAD"}
    }


def test_every_route_is_on_the_page_and_everything_on_it_is_a_route(
    routes: set[tuple[str, str]],
) -> None:
    assert set(SECTIONS) == routes


@pytest.mark.parametrize("section", SECTIONS, ids=" ".join)
def test_every_route_has_a_curl_command(section: tuple[str, str]) -> None:
    method, path = section
    lines = re.findall(r"^curl .*$", SECTIONS[section], re.MULTILINE)
    assert lines
    pattern = re.sub(r"{\w+}", r"[^/?]+", path)
    for line in lines:
        words = shlex.split(line)
        [url] = [word for word in words if word.startswith("$URL")]
        assert re.fullmatch(rf"\$URL{pattern}(?:\?.*)?", url), line
        asked = words[words.index("-X") + 1] if "-X" in words else "GET"
        assert asked == method


def test_every_code_of_a_refusal_is_on_the_page() -> None:
    codes = {code for _, _, code in _KNOWN} | set(_HTTP_CODES.values())
    for code in codes - {"refused"} | {"no_leader", "unavailable"}:
        assert f"`{code}`" in PAGE
