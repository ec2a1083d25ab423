"""What is written when many pods wait for their reason: in which order, and how fast."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kube_objects import kube_pod

from phalanx.kube.api.errors import ApiStatus, ApiStatusError
from phalanx.kube.writes.calls import PodReference, PodReport
from phalanx.kube.writes.event_writer import EventWriter
from phalanx.kube.writes.status_writer import REFRESH_S, SETTLE_S, StatusWriter
from phalanx.kube.writes.write_budget import WRITERS, WriteBudget


class ApiRecord:
    """An API server that notes what is written, and first answers 429 so many times."""

    def __init__(self, refusals: int = 0) -> None:
        self.written: list[str] = []
        self.refusals = refusals
        self.versions: dict[str, str] = {}

    async def patch(self, path: str, body: dict[str, Any], _: object) -> bytes:
        name = path.split("/")[-2]
        if body["metadata"]["resourceVersion"] != self.versions.get(name, ""):
            raise ApiStatusError(ApiStatus(code=409))
        return self._write(name)

    async def request(self, _: str, __: str, body: dict[str, Any]) -> bytes:
        return self._write(f"event of {body['involvedObject']['name']}")

    def _write(self, what: str) -> bytes:
        if self.refusals:
            self.refusals -= 1
            raise ApiStatusError(ApiStatus(code=429), 0.01)
        self.written.append(what)
        return b""


def reports(*pods: str, message: str = "full") -> list[PodReport]:
    """That pods such as `a-0` are pending."""
    return [
        PodReport(PodReference("ns", pod, f"uid-{pod}"), "Unschedulable", message, pod[0])
        for pod in pods
    ]


@asynccontextmanager
async def writing(api: Any, step_s: float = SETTLE_S) -> AsyncIterator[StatusWriter]:
    """Write until the end of the block. Every look at the clock is so much later than the last, so
    that every report has held for long enough."""
    ticks = count(step=step_s)
    budget = WriteBudget()
    events = EventWriter(api, lambda: True, budget)
    status = StatusWriter(api, lambda: True, events, budget, lambda: next(ticks))
    tasks = [asyncio.create_task(each.run()) for each in (status, events) * WRITERS]
    try:
        yield status
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_pod_of_every_gang_has_its_reason_first_and_events_come_last() -> None:
    api = ApiRecord()
    pods = reports("a-0", "a-1", "a-2", "b-0", "b-1")
    async with writing(api) as status:
        status.report(pods, {})
        status.report(pods, {})

        async def is_done() -> bool:
            return len(api.written) == 10

        await eventually(is_done, PATIENCE_S)
    written = api.written
    assert written[:5] == ["a-0", "b-0", "a-1", "a-2", "b-1"]
    assert {*written[5:]} == {f"event of {pod}" for pod in written[:5]}


async def test_what_the_api_server_is_too_busy_for_is_written_later() -> None:
    api = ApiRecord(refusals=3)
    async with writing(api) as status:

        async def is_done() -> bool:
            status.report(reports("a-0", "b-0"), {})  # as after every plan
            return len(api.written) == 4

        await eventually(is_done, PATIENCE_S)
    assert sorted(api.written) == ["a-0", "b-0", "event of a-0", "event of b-0"]


async def test_a_reason_never_replaces_the_condition_of_a_bind() -> None:
    """The pod was bound between the plan and the write: the API server has a later version."""
    api = ApiRecord()
    api.versions["a-0"] = "2"
    pods = {f"uid-{name}": kube_pod(name, "ns") for name in ("a-0", "b-0")}
    async with writing(api) as status:

        async def is_done() -> bool:
            status.report(reports("a-0", "b-0"), pods)
            return len(api.written) == 2

        await eventually(is_done, PATIENCE_S)
    assert api.written == ["b-0", "event of b-0"]


async def test_new_numbers_are_written_once_a_minute_and_without_an_event() -> None:
    api = ApiRecord()
    async with writing(api, REFRESH_S / 4) as status:

        async def has(number: int) -> bool:
            return len(api.written) == number

        status.report(reports("a-0", message="1 fits"), {})
        status.report(reports("a-0", message="1 fits"), {})
        await eventually(lambda: has(2), PATIENCE_S)
        # The clock was also read for the write, a quarter of a minute after the last report.
        for message in ("2 fit", "3 fit", "4 fit"):
            status.report(reports("a-0", message=message), {})
            assert await has(2)
        status.report(reports("a-0", message="5 fit"), {})
        await eventually(lambda: has(3), PATIENCE_S)
    assert api.written == ["a-0", "event of a-0", "a-0"]
