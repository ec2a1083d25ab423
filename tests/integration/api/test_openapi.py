"""The description of the routes: complete, with examples, and nothing that fits it breaks us."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import FailedHealthCheck, Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from phalanx.api.app import OPENAPI_PATH
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Running, quick, serving
from tests.integration.server.waiting import PATIENCE_S


class Aside:
    """A server in a thread, for clients that block."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._main: asyncio.Task[None] | None = None

    def __enter__(self) -> "Aside":
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._main is not None
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        self._main = self._loop.create_task(self._serve())
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._main)
        self._loop.close()

    async def _serve(self) -> None:
        store = MemoryStore(clock=wall_clock)
        async with serving(store, settings=quick(sync_wait_s=0.01)) as running:
            self.url = running.url
            self._ready.set()
            await asyncio.Event().wait()


@pytest.fixture(scope="module")
def described() -> Iterator[Any]:
    with Aside() as aside:
        # A stream never ends, so it is not called with random input.
        yield schemathesis.openapi.from_url(f"{aside.url}{OPENAPI_PATH}/openapi.json").exclude(
            path="/events"
        )


#: All that can be sent to one operation, in an order that is always the same.
BOUNDED = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
#: As above, but ends after 50 attempts at a case if fewer than 10 of them were one.
EXPECTANT = settings(
    BOUNDED,
    suppress_health_check=[each for each in HealthCheck if each != HealthCheck.filter_too_much],
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_that_is_sent_breaks_the_server(described: Any, mode: GenerationMode) -> None:
    """Neither what fits the description nor what does not."""
    for found in described.get_all_operations():
        _try_all(found.ok(), mode)


def _try_all(operation: Any, mode: GenerationMode) -> None:
    """Nothing can be wrong with a request that says nothing: Hypothesis would try that 459 times.

    Where something can be wrong, the first case is among the first ten attempts.
    """
    sent = 0

    def check(case: Any) -> None:
        nonlocal sent
        sent += 1
        response = case.call(timeout=PATIENCE_S)
        case.validate_response(response, checks=[not_a_server_error])
        assert "x-request-id" in {name.lower() for name in response.headers}

    def try_with(bounds: settings) -> None:
        bounds(given(case=operation.as_strategy(generation_mode=mode))(check))()

    try:
        try_with(EXPECTANT)
    except FailedHealthCheck:
        if sent:
            try_with(BOUNDED)
    except Unsatisfiable:
        pass


#: Bodies that are no text, no JSON, or JSON that few programs can read.
ODD_BODIES = (
    *(b"\xff\xfe\x00", b"\x00", b"\xef\xbb\xbf", b"\xef\xbb\xbf{}", b"\t- a", b"\xed\xa0\x80"),
    *(b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"id": "\\ud800"}', b'{"id": "\\u0000"}', b"null"),
    *(b'{"priority": 1e999}', b'{"slots": ' + b"9" * 5000 + b"}", b"[" * 10_000, b'"' * 99),
)


async def test_odd_bytes_break_no_route(server: Running) -> None:
    """Schemathesis sends what JSON can say; these bodies are what it cannot."""
    described = (await server.call("GET", f"{OPENAPI_PATH}/openapi.json")).body
    for path, methods in described["paths"].items():
        for method in methods.keys() & {"post", "put"}:
            target = re.sub(r"\{\w+\}", "x", path)
            for body in ODD_BODIES:
                reply = await server.client.request(
                    method,
                    target,
                    content=body,
                    params={"task": "j-1.0", "attempt": 1, "offset": 0, "epoch": 1},
                    headers={"content-type": "application/json"},
                )
                assert reply.status_code < 500, (method, path, body, reply.text)


async def test_the_routes_are_described_without_scripts_of_other_servers(server: Running) -> None:
    for path in (OPENAPI_PATH, f"{OPENAPI_PATH}/openapi.json"):
        answer = await server.client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert "/jobs" in answer.json()["paths"]
    for page in ("scalar", "swagger", "redoc", "elements", "rapidoc"):
        assert (await server.client.get(f"{OPENAPI_PATH}/{page}")).status_code == 404


async def test_every_route_and_every_query_parameter_is_described(server: Running) -> None:
    description = (await server.client.get("/openapi/openapi.json")).json()
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] != "path":
                    assert parameter.get("description"), (method, path, parameter["name"])


async def test_bodies_are_described_with_examples(server: Running) -> None:
    described = (await server.call("GET", f"{OPENAPI_PATH}/openapi.json")).body
    for path, method in (
        ("/jobs", "post"),
        ("/jobs:batch", "post"),
        ("/plan", "post"),
        ("/jobs/{job_id}/priority", "post"),
        ("/workers/register", "post"),
        ("/workers/{worker_id}/sync", "post"),
        ("/queues/{name}", "put"),
    ):
        content = described["paths"][path][method]["requestBody"]["content"]
        assert content["application/json"]["examples"], path


async def test_every_example_is_accepted(server: Running) -> None:
    described = (await server.call("GET", f"{OPENAPI_PATH}/openapi.json")).body
    for path in ("/plan", "/workers/register", "/jobs:batch"):
        content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            reply = await server.client.post(path, json=example["value"])
            assert reply.status_code in (200, 201), reply.text
