"""Arrays over HTTP: one submission, elements one by one, cancel, retry, dependencies."""

from typing import Any

from phalanx.api.elements import live_array
from phalanx.core import invariants
from phalanx.core.cluster import Cluster
from phalanx.core.model import ElementCounts
from phalanx.host.clock import wall_clock
from tests.integration.api.serving import Running
from tests.integration.api.test_jobs import submit
from tests.integration.api.test_plain import claim
from tests.integration.server.waiting import PATIENCE_S, eventually

SWEEP: dict[str, Any] = {
    "name": "sweep",
    "max_retries": 1,
    "roles": {"worker": {"command": ["train", "--lr", "{lr}", "{}"]}},
    "array": {"params": {"lr": ["1e-3", "1e-4"], "seed": [0, 1]}, "parallel": 2},
}
#: A job that does not start.
WAITS: dict[str, Any] = {"name": "waits", "roles": {"w": {"command": "x", "resources": {"gpu": 9}}}}


async def get(server: Running, path: str) -> Any:
    reply = await server.call("GET", path)
    assert reply.status == 200, reply
    return reply.body


async def run_next(server: Running, verb: str = "done") -> dict[str, Any]:
    task = await claim(server)
    body = None if verb == "done" else {"error": "diverged"}
    reply = await server.call("POST", f"/jobs/{task['id'].replace('@', '%40')}/{verb}", body)
    assert reply.status == 200, reply
    return task


def counts(view: dict[str, Any]) -> dict[str, int]:
    return {name: count for name, count in view["elements"].items() if count}


async def test_an_array_is_one_job_whose_elements_are_shown_one_by_one(
    on_each_store: Running,
) -> None:
    server = on_each_store
    made = await submit(server, SWEEP)
    job = made["id"]
    assert counts(made) == {"total": 4, "pending": 4, "parallel": 2}
    assert [each["id"] for each in (await get(server, "/jobs"))["jobs"]] == [job]

    first = await run_next(server)
    assert first["argv"] == ["train", "--lr", "1e-3", "{}"]
    assert first["env"]["PHALANX_PARAM_SEED"] == "0"
    await run_next(server, "fail")
    shown = await get(server, f"/jobs/{job}")
    assert counts(shown) == {"total": 4, "pending": 2, "done": 1, "failed": 1, "parallel": 2}
    [failed] = shown["first_failed"]
    assert (failed["id"], failed["params"]) == (f"{job}[1]", {"lr": "1e-3", "seed": "1"})
    assert shown["spec"]["array"] == SWEEP["array"] | {
        "params": {"lr": ["1e-3", "1e-4"], "seed": ["0", "1"]}
    }

    page = await get(server, f"/jobs/{job}/elements?limit=3")
    assert [(each["index"], each["phase"]) for each in page["elements"]] == [
        (0, "done"),
        (1, "failed"),
        (2, "pending"),
    ]
    rest = await get(server, f"/jobs/{job}/elements?limit=3&cursor={page['cursor']}")
    assert [each["index"] for each in rest["elements"]] == [3]
    element = await get(server, f"/jobs/{job}%5B0%5D")
    assert (element["phase"], element["array"], element["index"]) == ("done", job, 0)
    missing = await server.call("GET", f"/jobs/{job}%5B4%5D")
    assert missing.body["error"]["message"] == f"array {job} has no element 4; its elements are 0-3"
    assert missing.status == 404
    events = await get(server, f"/jobs/{job}%5B1%5D/events")
    assert [each["kind"] for each in events["events"]][-1] == "JobEnded"


async def test_failed_elements_of_an_ended_array_are_retried_in_place(
    on_each_store: Running,
) -> None:
    server = on_each_store
    job = (await submit(server, SWEEP))["id"]
    after = (await submit(server, {"roles": {"w": {"command": "x"}}, "afterany": [job]}))["id"]
    for verb in ("done", "fail", "done", "done"):
        await run_next(server, verb)
    shown = await get(server, f"/jobs/{job}")
    assert (shown["phase"], shown["cause"]) == ("failed", "1 of 4 elements failed")
    assert (await get(server, f"/jobs/{after}"))["phase"] == "pending"
    refused = await server.call("POST", f"/jobs/{job}/retry?elements=9")
    assert (refused.status, "has no element 9" in refused.body["error"]["message"]) == (404, True)
    retried = await server.call("POST", f"/jobs/{job}/retry?failed=true", Idempotency_Key="a")
    assert (retried.status, retried.body["phase"]) == (200, "pending")
    again = await server.call("POST", f"/jobs/{job}/retry?failed=true", Idempotency_Key="a")
    assert again.status == 200
    task = await run_next(server)  # older than the job after the array
    assert task["id"] == f"{job}[1].0@2"
    assert (await get(server, f"/jobs/{job}"))["phase"] == "done"


async def test_a_new_leader_loads_the_elements(on_each_store: Running) -> None:
    server = on_each_store
    body = SWEEP | {"array": "0-299%280"}
    job = (await submit(server, body, Idempotency_Key="once"))["id"]
    assert (await submit(server, body, Idempotency_Key="once"))["id"] == job
    for verb in ("done", "fail"):
        await run_next(server, verb)
    await server.call("DELETE", f"/jobs/{job}?elements=290-299")
    rows = await server.services.store.load(server.engine.term or 0)
    loaded = Cluster.load(rows, wall_clock())
    invariants.check(loaded)
    array = live_array(loaded, job)
    assert array is not None
    assert array.element_counts == ElementCounts(pending=288, done=1, failed=1, never_ran=10)
    before = await server.engine.do(lambda turn: turn.cluster.gangs[job])
    assert (array.job, array.blocks) == (before.job, getattr(before, "blocks", None))


async def test_elements_are_cancelled_by_their_index(on_each_store: Running) -> None:
    server = on_each_store
    job = (await submit(server, SWEEP | {"array": "0-9%2"}))["id"]
    reply = await server.call("DELETE", f"/jobs/{job}?elements=0,4-6")
    assert counts(reply.body) == {"total": 10, "pending": 6, "never_ran": 4, "parallel": 2}
    one = await server.call("DELETE", f"/jobs/{job}%5B9%5D")
    assert counts(one.body)["never_ran"] == 5
    never = await get(server, f"/jobs/{job}/elements?never_ran=true")
    assert [each["index"] for each in never["elements"]] == [0, 4, 5, 6, 9]
    waiting = await get(server, f"/jobs/{job}%5B8%5D/why")
    assert waiting["message"] == ("pending: the array runs 2 elements at the same time (parallel)")
    held = await server.call("POST", f"/jobs/{job}%5B8%5D/hold")
    assert (held.status, "change the whole array" in held.body["error"]["message"]) == (409, True)
    await server.call("DELETE", f"/jobs/{job}")
    shown = await get(server, f"/jobs/{job}")
    assert (shown["phase"], counts(shown)["never_ran"]) == ("cancelled", 10)
    ended = await get(server, f"/jobs/{job}%5B8%5D")
    assert (ended["phase"], ended["attempt"]) == ("cancelled", 0)


async def test_jobs_run_after_arrays_and_elements_by_name(server: Running) -> None:
    job = (await submit(server, SWEEP))["id"]
    body = {"roles": {"w": {"command": "x"}}}
    whole = (await submit(server, body | {"after": ["sweep"]}))["id"]
    one = (await submit(server, body | {"after": ["sweep[0]"]}))["id"]
    await run_next(server)
    shown = await get(server, f"/jobs/{one}")
    assert [each["id"] for each in shown["after"]] == [f"{job}[0]"]

    async def may_start() -> bool:
        reason = (await get(server, f"/jobs/{one}")).get("reason")
        return reason is None or reason["type"] != "After"

    await eventually(may_start, PATIENCE_S)
    assert (await get(server, f"/jobs/{whole}"))["reason"]["jobs"] == [job]
    missing = await server.call("POST", "/jobs", body | {"after": ["sweep[7]"]})
    assert missing.status == 400


async def test_an_element_that_an_ended_array_never_had_is_no_dependency(server: Running) -> None:
    job = (await submit(server, SWEEP | {"after": [(await submit(server, WAITS))["id"]]}))["id"]
    await server.call("DELETE", f"/jobs/{job}")
    assert (await get(server, f"/jobs/{job}"))["phase"] == "cancelled"
    body = {"roles": {"w": {"command": "x"}}}
    for wrong in ("sweep[7]", f"{job}[7]", "sweep[x]", "waits[0]"):
        missing = await server.call("POST", "/jobs", body | {"afterany": [wrong]})
        assert missing.status == 400, wrong
    after = await submit(server, body | {"after": ["sweep[3]"]})
    assert (await get(server, f"/jobs/{after['id']}"))["phase"] == "failed"


async def test_an_array_is_explained_planned_and_not_read_as_a_job(server: Running) -> None:
    job = (await submit(server, SWEEP))["id"]
    why = await get(server, f"/jobs/{job}/why")
    assert why["phase"] == "pending"
    plan = await server.call("POST", "/plan", SWEEP | {"name": "other"})
    assert plan.body["message"].startswith("each of 4 elements: ")
    for path in ("logs", "requeue"):
        method = "GET" if path == "logs" else "POST"
        reply = await server.call(method, f"/jobs/{job}/{path}")
        assert "name an element, like" in reply.body["error"]["message"], reply
    plain = (await submit(server))["id"]
    reply = await server.call("GET", f"/jobs/{plain}/elements")
    assert reply.body["error"]["message"] == f"job {plain} is not an array; it has no elements"
