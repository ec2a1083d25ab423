"""Jobs over HTTP: submitting, listing, showing, and what is done to them."""

import asyncio
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from phalanx.api import listing
from phalanx.core.states import State
from phalanx.engine.job_ids import JobIds
from tests.integration.api.serving import Running
from tests.integration.server.waiting import PATIENCE_S

NATIVE: dict[str, Any] = {
    "name": "pretrain",
    "roles": {"worker": {"command": ["python", "train.py"], "replicas": 2}},
}
LARGE = {"command": "train", "gang_size": 2, "resources": {"gpu": 1}}


async def submit(server: Running, body: Any = None, **headers: str) -> dict[str, Any]:
    reply = await server.call("POST", "/jobs", body or {"command": "true"}, **headers)
    assert reply.status in (200, 201), reply.body
    found: dict[str, Any] = reply.body
    return found


async def test_a_native_job_is_submitted_and_shown(on_each_store: Running) -> None:
    server = on_each_store
    made = await submit(server, NATIVE)
    assert (made["phase"], made["size"], made["warnings"]) == ("pending", 2, [])
    shown = (await server.call("GET", f"/jobs/{made['id']}")).body
    assert shown["name"] == "pretrain"
    assert shown["counts"] == {
        "succeeded": 0,
        "failed": 0,
        "running": 0,
        "pending": 2,
        "total": 2,
    }
    assert [task["id"] for task in shown["tasks"]] == [f"{made['id']}.0", f"{made['id']}.1"]
    assert shown["spec"] == NATIVE


async def test_a_job_in_yaml_is_the_same_job(server: Running) -> None:
    text = b"name: pretrain\nroles:\n  worker: {command: [python, train.py], replicas: 2}\n"
    reply = await server.call("POST", "/jobs", text, content_type="application/yaml")
    assert reply.status == 201
    assert (await server.call("GET", f"/jobs/{reply.body['id']}")).body["spec"] == NATIVE


async def test_the_plain_endpoints_have_the_plain_protocols_names(server: Running) -> None:
    made = await submit(server, {"command": "echo hi", "priority": 3})
    assert made["status"] == "pending"
    [shown] = (await server.call("GET", f"/gangs/{made['id']}")).body
    expected = {
        "command": "echo hi",
        "status": "pending",
        "priority": 3,
        "queue_name": "default",
        "max_retries": 3,
        "attempts": 0,
        "gang_id": made["id"],
        "gang_size": 1,
        "gang_index": 0,
        "reservation_epoch": 0,
        "preemption_epoch": 0,
        "resources": {},
    }
    assert expected.items() <= shown.items()
    assert shown["created_at"].endswith("Z")


async def test_a_task_is_shown_by_its_id(on_each_store: Running) -> None:
    server = on_each_store
    job = (await submit(server, {"command": "x", "gang_size": 2}))["id"]
    for name in (f"{job}.1", f"{job}.1@3"):
        shown = (await server.call("GET", f"/jobs/{name}")).body
        assert (shown["id"], shown["status"], shown["gang_index"]) == (f"{job}.1", "blocked", 1)
    assert (await server.call("GET", f"/jobs/{job}.2")).status == 404
    assert (await server.call("GET", f"/jobs/{job}.1@x")).status == 404
    await server.call("DELETE", f"/jobs/{job}")
    assert (await server.call("GET", f"/jobs/{job}.1")).body["status"] == "cancelled"


async def test_tasks_are_listed_with_their_status(
    on_each_store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = on_each_store
    jobs = [(await submit(server, {"command": "x", "gang_size": n}))["id"] for n in (1, 2, 1)]
    await server.call("DELETE", f"/jobs/{jobs[1]}")
    listed = await server.client.get("/jobs?view=tasks")
    assert [(task["id"], task["status"]) for task in listed.json()] == [
        (f"{jobs[2]}.0", "pending"),
        (f"{jobs[1]}.0", "cancelled"),
        (f"{jobs[1]}.1", "cancelled"),
        (f"{jobs[0]}.0", "pending"),
    ]
    assert "x-next-cursor" not in listed.headers
    monkeypatch.setattr(listing, "_MANY_TASKS", 2)
    pages, cursor = [], ""
    while True:
        page = await server.client.get(f"/jobs?view=tasks&limit=2{cursor}")
        pages.append([task["gang_id"] for task in page.json()])
        if "x-next-cursor" not in page.headers:
            break
        cursor = f"&cursor={page.headers['x-next-cursor']}"
    assert pages == [[jobs[2], jobs[1], jobs[1]], [jobs[0]]]
    assert (await server.call("GET", "/jobs?view=jobs")).status == 400


async def test_the_short_form_takes_a_queue_and_no_size(server: Running) -> None:
    await server.call("PUT", "/queues/ml", {"weight": 1})
    made = await submit(server, {"command": "x", "gang_size": 0, "queue_name": "ml"})
    shown = (await server.call("GET", f"/jobs/{made['id']}.0")).body
    assert (shown["gang_size"], shown["queue_name"], made["status"]) == (1, "ml", "pending")


PLAIN_NAMES = {
    "attempts",
    "depends_on",
    "done_at",
    "epoch",
    "gang_id",
    "gang_index",
    "gang_size",
    "preemption_epoch",
    "queue_name",
    "reservation_epoch",
    "status",
    "worker_id",
}


async def test_native_views_have_native_names_only(server: Running) -> None:
    roles = {"ps": {"command": "x"}, "worker": {"command": "x", "replicas": 2}}
    job = (await submit(server, {"roles": roles}))["id"]
    shown = (await server.call("GET", f"/jobs/{job}")).body
    tasks = (await server.call("GET", f"/jobs/{job}/tasks")).body
    assert shown["tasks"] == tasks
    assert not PLAIN_NAMES & shown.keys()
    assert not PLAIN_NAMES & set().union(*tasks)
    assert [(t["task"], t["role"], t["index"], t["state"], t["attempt"]) for t in tasks] == [
        (0, "ps", 0, "pending", 0),
        (1, "worker", 0, "pending", 0),
        (2, "worker", 1, "pending", 0),
    ]
    assert [t["status"] for t in (await server.call("GET", f"/gangs/{job}")).body] == [
        "blocked"
    ] * 3


async def test_submitting_again_with_the_same_key_gives_the_first_job(
    on_each_store: Running,
) -> None:
    server = on_each_store
    first = await server.call("POST", "/jobs", {"command": "true"}, idempotency_key="k-1")
    again = await server.call("POST", "/jobs", {"command": "true"}, idempotency_key="k-1")
    assert (first.status, again.status) == (201, 200)
    assert first.body["id"] == again.body["id"]
    assert (await server.call("DELETE", f"/jobs/{first.body['id']}")).status == 200
    later = await server.call("POST", "/jobs", {"command": "true"}, idempotency_key="k-1")
    assert (later.status, later.body["id"]) == (200, first.body["id"])
    assert later.body["phase"] == "cancelled"


async def test_many_at_once_with_one_key_make_one_job(on_each_store: Running) -> None:
    replies = await asyncio.gather(
        *(
            on_each_store.call("POST", "/jobs", {"command": "true"}, idempotency_key="same")
            for _ in range(20)
        )
    )
    assert sorted(reply.status for reply in replies) == [200] * 19 + [201]
    assert len({reply.body["id"] for reply in replies}) == 1


def drawing(server: Running, patch: pytest.MonkeyPatch, ids: Iterator[str]) -> None:
    """From now on new jobs get these ids, as far as no job has them."""
    services = server.services
    job_ids = JobIds(server.engine, services.store, draw=lambda: next(ids))
    patch.setattr(services.submissions, "_ids", job_ids)


async def test_an_id_that_another_job_has_is_drawn_again(
    on_each_store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = on_each_store
    finished, unfinished = [(await submit(server))["id"] for _ in range(2)]
    await server.call("DELETE", f"/jobs/{finished}")
    drawing(server, monkeypatch, cycle([finished, unfinished, "j-7kq2m4xd", "j-7kq2m4xe"]))
    reply = await server.call("POST", "/jobs:batch", [{"command": "true"}] * 2)
    assert {each["job"]["id"] for each in reply.body["results"]} == {"j-7kq2m4xd", "j-7kq2m4xe"}
    assert (await server.call("GET", f"/jobs/{finished}")).body["phase"] == "cancelled"


async def test_two_submissions_that_draw_the_same_id_at_once_make_two_jobs(
    on_each_store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = on_each_store
    # Every call draws the same ids.
    drawing(server, monkeypatch, cycle([f"j-0000000{n}" for n in range(9)]))
    made = await asyncio.gather(*(submit(server) for _ in range(3)))
    assert len({job["id"] for job in made}) == 3


async def test_a_batch_accepts_and_refuses_one_by_one(on_each_store: Running) -> None:
    server = on_each_store
    jobs = [{"command": "true"}, {"command": ""}, NATIVE, NATIVE]
    reply = await server.call("POST", "/jobs:batch", jobs, idempotency_key="b")
    assert (reply.status, reply.body["accepted"], reply.body["refused"]) == (200, 2, 2)
    results = reply.body["results"]
    assert results[1]["error"]["details"][0]["path"] == "command"
    assert results[3]["error"]["details"][0]["path"] == "name"
    again = await server.call("POST", "/jobs:batch", jobs, idempotency_key="b")
    assert again.body["results"][0]["job"]["id"] == results[0]["job"]["id"]
    two = b"command: 'true'\n---\ncommand: 'false'\n"
    reply = await server.call("POST", "/jobs:batch", two, content_type="application/yaml")
    assert reply.body["accepted"] == 2


async def test_pages_list_unfinished_and_finished_jobs_by_their_creation(
    on_each_store: Running,
) -> None:
    server = on_each_store
    made = [(await submit(server))["id"] for _ in range(7)]
    for job in (made[4], made[0], made[1]):
        await server.call("DELETE", f"/jobs/{job}")
    for limit in (1, 2, 3, 4, 100):
        seen: list[str] = []
        cursor = ""
        while True:
            page = (await server.call("GET", f"/jobs?limit={limit}{cursor}")).body
            assert len(page["jobs"]) <= limit
            seen += [job["id"] for job in page["jobs"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert seen == made[::-1], limit


async def test_a_job_that_ends_between_two_pages_is_on_one_of_them(on_each_store: Running) -> None:
    server = on_each_store
    made = [(await submit(server))["id"] for _ in range(5)]
    first = (await server.call("GET", "/jobs?limit=2")).body
    for job in (made[4], made[1]):
        await server.call("DELETE", f"/jobs/{job}")
    rest = (await server.call("GET", f"/jobs?cursor={first['cursor']}")).body
    assert [job["id"] for job in (*first["jobs"], *rest["jobs"])] == made[::-1]
    assert rest["cursor"] is None


async def test_lists_are_filtered(server: Running) -> None:
    await server.call("PUT", "/queues/research", {})
    one = await submit(server, {**NATIVE, "queue": "research"})
    two = await submit(server, {**NATIVE, "namespace": "ml"})
    await server.call("DELETE", f"/jobs/{two['id']}")
    for query, expected in (
        ("queue=research", [one["id"]]),
        ("namespace=ml", [two["id"]]),
        ("phase=cancelled", [two["id"]]),
        ("phase=pending", [one["id"]]),
        ("name=pretrain", [two["id"], one["id"]]),
        ("name=other", []),
        ("finished=false", [one["id"]]),
        ("finished=true", [two["id"]]),
        ("finished=true&phase=pending", []),
        ("finished=false&phase=cancelled", []),
        (f"id_prefix={one['id'][:-1]}", [one["id"]]),
        (f"id_prefix={two['id'][:-1]}", [two["id"]]),
        ("id_prefix=j-", [two["id"], one["id"]]),
        ("id_prefix=J-", []),
        ("name_contains=", [two["id"], one["id"]]),
        ("name_contains=tra", [two["id"], one["id"]]),
        ("name_contains=nothing", []),
    ):
        page = (await server.call("GET", f"/jobs?{query}")).body
        assert [job["id"] for job in page["jobs"]] == expected, query


@pytest.mark.parametrize("cursor", ["nonsense", "", "W10", "WzEsImotMSJd!"])
async def test_a_cursor_that_no_page_gave_is_refused(server: Running, cursor: str) -> None:
    reply = await server.call("GET", f"/jobs?cursor={cursor}")
    assert reply.status == 400
    assert reply.body["error"]["details"][0]["path"] == "cursor"


async def test_a_job_says_why_it_is_pending(server: Running) -> None:
    made = await submit(server, LARGE)
    async with asyncio.timeout(PATIENCE_S):
        while made["id"] not in server.engine.reasons:
            await asyncio.sleep(0)
    why = (await server.call("GET", f"/jobs/{made['id']}/why")).body
    assert why["reason"]["type"] == "NeverFits"
    assert why["reason"]["short_of"] == "gpu"
    assert "each task needs 1 GPU, the largest worker has 0" in why["message"]
    await server.call("POST", f"/jobs/{made['id']}/hold")
    why = (await server.call("GET", f"/jobs/{made['id']}/why")).body
    assert why["reason"]["type"] == "OnHold"
    await server.call("DELETE", f"/jobs/{made['id']}")
    why = (await server.call("GET", f"/jobs/{made['id']}/why")).body
    assert (why["phase"], why["reason"]) == ("cancelled", None)


async def test_the_events_of_a_job_come_in_pages(on_each_store: Running) -> None:
    server = on_each_store
    made = await submit(server)
    await server.call("DELETE", f"/jobs/{made['id']}")
    story = (await server.call("GET", f"/jobs/{made['id']}/events")).body
    kinds = [event["kind"] for event in story["events"]]
    assert kinds[0] == "JobSubmitted"
    assert kinds[-1] == "JobEnded"
    assert story["messages"][0].startswith("submitted")
    assert len(story["messages"]) == len(kinds)
    page = (await server.call("GET", f"/jobs/{made['id']}/events?limit=1")).body
    rest = (await server.call("GET", f"/jobs/{made['id']}/events?after={page['next']}")).body
    assert page["events"] + rest["events"] == story["events"]


async def test_jobs_are_held_released_requeued_and_retried(server: Running) -> None:
    await server.call("POST", "/workers/register", {"id": "w-1", "slots": 4})
    made = await submit(server, NATIVE)
    job = made["id"]
    await server.until(lambda cluster: cluster.gangs[job].count(State.RESERVED) == 2)
    for _ in range(2):
        assert (await server.call("GET", "/jobs/next?worker_id=w-1")).status == 200
    assert (await server.call("POST", f"/jobs/{job}/hold")).body["on_hold"]
    requeued = await server.call("POST", f"/jobs/{job}/requeue")
    assert (requeued.status, requeued.body["phase"]) == (200, "stopping")
    for task in (f"{job}.0", f"{job}.1"):
        assert (await server.call("POST", f"/jobs/{task}/preempted?epoch=1")).status == 200
    shown = (await server.call("GET", f"/jobs/{job}")).body
    assert (shown["phase"], shown["failures"]) == ("pending", 0)
    assert (await server.call("POST", f"/jobs/{job}/requeue")).status == 409
    raised = await server.call("POST", f"/jobs/{job}/priority", {"priority": 9})
    assert raised.body["priority"] == 9
    assert (await server.call("POST", f"/jobs/{job}/retry")).status == 409
    cancelled = await server.call("DELETE", f"/jobs/{job}")
    assert cancelled.body["phase"] == "cancelled"
    assert (await server.call("DELETE", f"/jobs/{job}")).status == 409
    assert (await server.call("POST", f"/jobs/{job}/hold")).status == 409
    anew = await server.call("POST", f"/jobs/{job}/retry")
    assert anew.status == 201
    assert anew.body["id"] != job
    assert (await server.call("GET", f"/jobs/{anew.body['id']}")).body["spec"] == NATIVE


async def test_a_plan_says_what_would_happen_and_stores_nothing(on_each_store: Running) -> None:
    server = on_each_store
    waits = (await server.call("POST", "/plan", LARGE)).body
    assert (waits["starts"], waits["reason"]["type"]) == (False, "NeverFits")
    await server.call("POST", "/workers/register", {"id": "w", "slots": 2, "resources": {"gpu": 2}})
    starts = (await server.call("POST", "/plan", LARGE)).body
    assert starts["starts"]
    assert starts["placements"] == [{"task": 0, "worker": "w"}, {"task": 1, "worker": "w"}]
    assert (await server.call("GET", "/jobs")).body["jobs"] == []
    refused = await server.call("POST", "/plan", {**LARGE, "depends_on": ["j-0"]})
    assert refused.status == 400


async def test_dependencies_are_looked_up_wherever_they_are(on_each_store: Running) -> None:
    server = on_each_store
    first = await submit(server)
    second = await submit(server, {"command": "true", "depends_on": [first["id"]]})
    assert second["status"] == "blocked"
    claimed = await server.call("GET", "/jobs/next")
    assert claimed.body["gang_id"] == first["id"]
    assert (await server.call("POST", f"/jobs/{first['id']}/done")).status == 200
    [task] = (await server.call("GET", f"/gangs/{second['id']}")).body
    assert task["status"] == "pending"
    third = await submit(server, {"command": "true", "depends_on": [first["id"]]})
    assert third["status"] == "pending"
    unknown = await server.call("POST", "/jobs", {"command": "true", "depends_on": ["j-0"]})
    assert unknown.body["error"]["details"][0]["path"] == "depends_on[0]"


async def test_dependants_are_listed_by_their_creation(server: Running) -> None:
    first = (await submit(server))["id"]
    later = [
        (await submit(server, {**NATIVE, "name": None, "after": [first]}))["id"] for _ in range(5)
    ]
    shown = (await server.call("GET", f"/jobs/{first}")).body
    assert [job["id"] for job in shown["dependants"]] == later
