"""Errors: one form for all, the field that is wrong, our words, and the id of the request."""

import asyncio
import json
import re
from typing import Any

import pytest

from phalanx.api.services import Info
from phalanx.host.clock import wall_clock
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Running, serving
from tests.integration.api.test_jobs import submit
from tests.integration.server.waiting import PATIENCE_S


def error(body: Any) -> dict[str, Any]:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "details"}
    found: dict[str, Any] = body["error"]
    return found


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing/here", 404, "not_found"),
        ("GET", "/jobs/j-0", 404, "not_found"),
        ("GET", "/gangs/j-0", 404, "not_found"),
        ("GET", "/jobs/%00", 404, "not_found"),
        ("GET", "/jobs/j-0.x", 404, "not_found"),
        ("DELETE", "/jobs/j-0", 404, "not_found"),
        ("GET", "/queues/nothing", 404, "not_found"),
        ("DELETE", "/queues/nothing", 404, "not_found"),
        ("POST", "/queues/nothing/stop", 404, "not_found"),
        ("POST", "/workers/nobody/drain?deadline=soon", 400, "invalid"),
        ("DELETE", "/queues/default", 409, "conflict"),
        ("DELETE", "/workers/nobody", 404, "not_found"),
        ("POST", "/workers/nobody/drain", 404, "not_found"),
        ("PATCH", "/jobs", 405, "method_not_allowed"),
        ("GET", "/workers/w-1/sync", 405, "method_not_allowed"),
    ],
)
async def test_refusals_have_one_form(
    server: Running, method: str, path: str, status: int, code: str
) -> None:
    reply = await server.call(method, path)
    assert reply.status == status
    assert error(reply.body)["code"] == code
    assert error(reply.body)["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "named"),
    [
        ("POST", "/jobs", {"command": ""}, "command"),
        ("POST", "/jobs", {"command": "x", "gang_size": -1}, "gang_size"),
        ("POST", "/jobs", {"command": "x", "gang": 1}, "gang"),
        ("POST", "/jobs", {"roles": {"w": {"command": "x", "min": 2}}}, "roles.w.min"),
        ("POST", "/jobs", {"roles": {"w": {"command": "x"}}, "queue": "none"}, "queue"),
        ("POST", "/plan", {"roles": {"w": {}}}, "roles.w.command"),
        ("POST", "/jobs/JOB/priority", {"priority": "high"}, "priority"),
        ("POST", "/jobs/JOB/priority", {}, "priority"),
        ("POST", "/workers/register", {}, "id"),
        ("POST", "/workers/register", {"id": "a b"}, "id"),
        ("POST", "/workers/register", {"id": "w", "resources": {"gpu": -1}}, "resources.gpu"),
        ("POST", "/workers/register", {"id": "w", "slots": 0}, "slots"),
        ("POST", "/workers/register", {"id": "w", "tags": 3}, "tags"),
        ("POST", "/workers/register", {"id": "w", "protocol": "smoke"}, "protocol"),
        ("POST", "/workers/w/sync", {"incarnation": "i"}, "seq"),
        ("POST", "/workers/w/sync", {"incarnation": 1, "seq": 1}, "incarnation"),
        (
            *("POST", "/workers/w/sync"),
            {"incarnation": "i", "seq": 1, "tasks": [{"id": "x", "attempt": 1, "state": "odd"}]},
            "tasks[0].state",
        ),
        ("PUT", "/queues/q", {"weight": -1}, "weight"),
        ("PUT", "/queues/q", {"reclaim_from_siblings": "some"}, "reclaim_from_siblings"),
        ("PUT", "/queues/q", {"parent": "none"}, "parent"),
        ("PUT", "/queues/q", {"quota": {"gpu": "much"}}, "quota.gpu"),
        ("PUT", "/queues/Q", {}, "name"),
        ("GET", "/jobs?limit=0", None, "limit"),
        ("GET", "/jobs?phase=odd", None, "phase"),
        ("GET", "/jobs/next?wait=-1", None, "wait"),
        ("GET", "/jobs/next?wait=nan", None, "wait"),
        ("GET", "/events?since=x", None, "since"),
        ("POST", "/jobs/JOB/preempted", None, "epoch"),
        ("POST", "/jobs/JOB/preempted?epoch=x", None, "epoch"),
        ("POST", "/jobs/JOB/checkpointed", None, "epoch"),
        ("POST", "/jobs/JOB/done?epoch=x", None, "epoch"),
        ("POST", "/jobs/JOB/fail?exit_code=0", None, "exit_code"),
        ("POST", "/jobs/JOB/checkpoint", b"x", "epoch"),
        ("GET", "/jobs/JOB/events?after=-1", None, "after"),
    ],
)
async def test_bad_input_is_refused_with_the_field_that_is_wrong(
    server: Running, method: str, path: str, body: Any, named: str
) -> None:
    job = (await submit(server))["id"]
    reply = await server.call(method, path.replace("JOB", job), body)
    assert reply.status == 400, reply.body
    assert error(reply.body)["code"] == "invalid"
    assert named in [detail["path"] for detail in error(reply.body)["details"]]
    assert all(detail["message"] for detail in error(reply.body)["details"])


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "/jobs?limit=x", None, 'limit is "x"; write a whole number from 1 to 1000'),
        ("GET", "/jobs?limit=0", None, "limit is 0; write a whole number from 1 to 1000"),
        ("GET", "/jobs?limit=", None, 'limit is ""; write a whole number from 1 to 1000'),
        ("GET", "/jobs?finished=maybe", None, 'finished is "maybe"; write true or false'),
        (
            *("GET", "/jobs?phase=waiting", None),
            (
                'phase is "waiting"; write pending, starting, running, stopping, done, failed,'
                " cancelled or timed-out"
            ),
        ),
        ("GET", "/jobs/next?wait=1e9", None, 'wait is "1e9"; write a number from 0 to 60'),
        ("GET", "/events?since=-1", None, "since is -1; write a whole number, 0 or more"),
        ("POST", "/jobs/j-1.0/preempted", None, "epoch is missing; add epoch=1 to the query"),
        (
            *("POST", "/workers/w/output?attempt=x", None),
            (
                "task is missing; add task=… to the query;"
                " offset is missing; add offset=1 to the query"
            ),
        ),
        (
            "POST",
            "/jobs/j-1/priority",
            b"",
            "the body is empty; send a mapping, like {priority: 10}",
        ),
        (
            *("POST", "/jobs/j-1/priority", b"[]"),
            "the body is a list; write a mapping, like {priority: 10}",
        ),
        ("POST", "/jobs", b"  ", "the body is empty; send a job"),
        ("POST", "/workers/w/sync", b"{", "the body is not valid JSON; send a JSON object"),
        (
            *("POST", "/workers/w/sync", b'{"seq": }'),
            "the body is not valid JSON at byte 8; send a JSON object",
        ),
        ("POST", "/workers/w/sync", b"[]", "the body is a list; send a mapping"),
        (
            *("POST", "/workers/w/sync", b'{"incarnation": "i", "seq": "x"}'),
            "seq is a string; write a whole number",
        ),
        (
            *("POST", "/workers/w/sync", b'{"incarnation": "i", "seq": 1, "wait": -1}'),
            "wait is -1.0; write a number of seconds, 0 or more",
        ),
        (
            "POST",
            "/workers/w/sync",
            b'{"incarnation": "i", "seq": 1, "tasks": [{"id": "x", "attempt": 1, "state": "odd"}]}',
            (
                'tasks[0].state is "odd"; write preparing or accepted or running or exited or'
                " spawn_failed or start_refused or gone"
            ),
        ),
        (
            "GET",
            "/nowhere",
            None,
            "there is no path /nowhere; /openapi lists the paths of this server",
        ),
        ("PATCH", "/jobs", None, "/jobs has no such method; it has GET and POST"),
    ],
)
async def test_errors_say_what_is_wrong_and_how_to_correct_it(
    server: Running, method: str, path: str, body: bytes | None, message: str
) -> None:
    reply = await server.call(method, path, body)
    assert error(reply.body)["message"] == message


#: What Litestar, msgspec, the JSON module and Python itself would say.
LIBRARY_TEXT = re.compile(
    r"Validation failed|Expected `|Invalid enum|Missing required|Input should|Not Found"
    r"|Method Not Allowed|Traceback|Errno|malformed|truncated|got `|NoneType|<class"
)


@pytest.mark.parametrize("value", ["", "x", "-1", "nan", "1e99", "9" * 40, "%00", "%ff"])
async def test_no_bad_parameter_of_any_route_is_answered_with_a_librarys_words(
    server: Running, value: str
) -> None:
    description = (await server.client.get("/openapi/openapi.json")).json()
    asked = 0
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            names = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
            if not names:
                continue
            query = "&".join(f"{name}={value}" for name in names)
            url = re.sub(r"{\w+}", "x", path)
            reply = await server.client.request(method.upper(), f"{url}?{query}", content=b"{}")
            asked += 1
            if reply.status_code >= 400:
                assert reply.status_code < 500
                assert not LIBRARY_TEXT.search(reply.text), reply.text
    assert asked > 10


async def test_bytes_that_are_not_http_are_answered_in_the_same_form(server: Running) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(b"\x16\x03\x01 not http\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "is not valid HTTP/1.1" in error(json.loads(body))["message"]


@pytest.mark.parametrize(
    "path", ["/jobs", "/jobs:batch", "/plan", "/workers/register", "/jobs/JOB/priority"]
)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[1", b"- {", b"3"])
async def test_bodies_that_are_nothing_are_refused(server: Running, path: str, body: bytes) -> None:
    job = (await submit(server))["id"]
    reply = await server.call("POST", path.replace("JOB", job), body)
    if path == "/jobs:batch" and body == b"3":
        assert reply.body["refused"] == 1
    else:
        assert reply.status == 400
        assert error(reply.body)["details"]


async def test_every_problem_of_a_job_is_named(server: Running) -> None:
    body = {"roles": {"w": {"replicas": 0}}, "grace": "long", "prority": 1}
    reply = await server.call("POST", "/jobs", body)
    paths = [detail["path"] for detail in error(reply.body)["details"]]
    assert sorted(paths) == ["grace", "prority", "roles.w.command", "roles.w.replicas"]


async def test_an_unsupported_content_type_is_refused(server: Running) -> None:
    reply = await server.call("POST", "/jobs", b"<job/>", content_type="application/xml")
    assert (reply.status, error(reply.body)["code"]) == (415, "unsupported_media_type")


async def test_bodies_are_bounded() -> None:
    info = Info(body_limit_bytes=1000)
    async with serving(MemoryStore(clock=wall_clock), info=info) as server:
        large = {"command": "x" * 2000}
        for path in ("/jobs", "/plan", "/workers/register", "/workers/w/sync"):
            reply = await server.call("POST", path, large)
            assert (reply.status, error(reply.body)["code"]) == (413, "too_large"), path

        async def chunks() -> Any:
            for _ in range(20):
                yield b" " * 100

        streamed = await server.client.post("/jobs", content=chunks())
        assert streamed.status_code == 413


async def test_every_answer_carries_the_id_of_its_request(server: Running) -> None:
    for path in ("/health", "/nothing", "/jobs", "/jobs/j-0"):
        reply = await server.client.get(path, headers={"X-Request-ID": "mine-1"})
        assert reply.headers["x-request-id"] == "mine-1"
        made = {(await server.client.get(path)).headers["x-request-id"] for _ in range(2)}
        assert len(made) == 2
        odd = await server.client.get(path, headers={"X-Request-ID": "a b"})
        assert odd.headers["x-request-id"] != "a b"
    reply = await server.client.post("/workers/w/sync", content=b"{", headers={"X-Request-ID": "z"})
    assert reply.headers["x-request-id"] == "z"


async def test_an_invalid_idempotency_key_is_refused(server: Running) -> None:
    reply = await server.call("POST", "/jobs", {"command": "x"}, idempotency_key="k" * 256)
    assert error(reply.body)["details"][0]["path"] == "Idempotency-Key"


async def test_metrics_and_health_are_served(server: Running) -> None:
    reply = await server.client.get("/metrics")
    assert (reply.status_code, reply.content) == (200, b"phalanx_up 1\n")
    for path in ("/health", "/healthz", "/readyz"):
        body = json.loads((await server.client.get(path)).content)
        assert (body["status"], body["leading"]) == ("ok", True)


async def test_an_unknown_query_parameter_is_refused_with_the_nearest_one(server: Running) -> None:
    made = await submit(server)
    for path, parameter, cure in (
        ("/jobs?limt=3", "limt", "did you mean limit?"),
        ("/jobs?limit=3&zone=a", "zone", "use one of: cursor, finished, "),
        (f"/jobs/{made['id']}?wait=1&%00=2", "wait", "is not a parameter of this request"),
        ("/workers?%0a=1", '"\\n"', "is not a"),
    ):
        refused = await server.call("GET", path)
        [detail] = error(refused.body)["details"]
        assert (refused.status, detail["path"]) == (400, parameter), path
        assert cure in detail["message"]
    ignored = await server.call("POST", "/jobs?ignore_imge=true", {"command": "x"})
    assert "did you mean ignore_image?" in error(ignored.body)["message"]


async def test_requests_of_the_plain_protocol_may_have_other_parameters(server: Running) -> None:
    made = await submit(server)
    assert (await server.call("GET", f"/gangs/{made['id']}?pretty=1")).status == 200
    claimed = await server.call("GET", "/jobs/next?zone=a&wait=1")
    assert claimed.status == 200
    assert (await server.call("GET", "/healthz?probe=1")).status == 200


async def test_problems_of_the_short_form_name_the_fields_that_were_written(
    server: Running,
) -> None:
    short = {"command": "x", "queue_name": "nowhere", "depends_on": ["j-0"]}
    refused = await server.call("POST", "/jobs", short)
    assert [each["path"] for each in error(refused.body)["details"]] == [
        "queue_name",
        "depends_on[0]",
    ]
    [item] = (await server.call("POST", "/jobs:batch", [short])).body["results"]
    assert {each["path"] for each in item["error"]["details"]} == {"queue_name", "depends_on[0]"}
