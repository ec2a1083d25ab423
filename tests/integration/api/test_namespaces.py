"""A user of one namespace learns nothing about the jobs of another, on any route."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
import yaml
from litestar.routes import HTTPRoute

from phalanx.api.app import OPENAPI_PATH, create_app
from phalanx.api.auth import ALLOWED
from phalanx.api.visibility import HIDDEN_JOB, HIDDEN_TASK, visible_reason
from phalanx.core.reasons import HeldBack
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal, Unauthorised
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Reply, Running, serving

ANN = Principal("ann", "user", ("a",))
PRINCIPALS = {
    "ann": ANN,
    "eve": Principal("eve", "user", ("a", "c")),
    "root": Principal("root", "admin"),
    "w": Principal("w", "worker", workers="*"),
}
#: In every name, command, variable and output of namespace b.
MARKER = "bsecret"


class Tokens:
    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        if bearer not in PRINCIPALS:
            raise Unauthorised
        return PRINCIPALS[bearer]


class Contest:
    """Jobs of the namespaces a and b that have evicted each other from one worker."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.jobs: dict[str, str] = {}

    async def call(self, by: str, method: str, path: str, body: Any = None) -> Reply:
        return await self.server.call(method, path, body, authorization=f"Bearer {by}")

    async def submit(self, namespace: str, name: str, priority: int, **fields: Any) -> str:
        secret = MARKER if namespace == "b" else "open"
        role = {"command": f"run {secret}", "env": {"KEY": secret}, "resources": {"gpu": 1}}
        body = {"namespace": namespace, "name": name, "priority": priority, "roles": {"r": role}}
        body["grace"] = "1h"  # it is stopping until it says that it has stopped
        reply = await self.call("root", "POST", "/jobs", body | fields)
        assert reply.status == 201, reply
        self.jobs[name] = reply.body["id"]
        return self.jobs[name]

    async def place(self, job: str) -> None:
        """Wait until the worker can run the job, and run it."""
        await self.server.until(lambda c: c.gangs[job].tasks[0].worker == "w-1")
        claimed = await self.call("w", "GET", "/jobs/next?worker_id=w-1&wait=60")
        assert claimed.body["gang_id"] == job

    async def stop(self, job: str) -> None:
        await self.server.until(lambda c: c.gangs[job].job.stopping is not None)
        reply = await self.call("w", "POST", f"/jobs/{job}.0/preempted?epoch=1")
        assert reply.status == 200, reply

    async def play(self) -> None:
        worker = {"id": "w-1", "resources": {"gpu": 1}, "slots": 1}
        assert (await self.call("w", "POST", "/workers/register", worker)).status == 201
        mine = await self.submit("a", "mine", 0)
        await self.place(mine)
        theirs = await self.submit("b", f"{MARKER}-big", 10)
        await self.stop(mine)
        await self.place(theirs)
        await self.submit("b", f"{MARKER}-next", 5)
        urgent = await self.submit("a", "urgent", 20)
        await self.server.until(lambda c: c.gangs[theirs].job.stopping is not None)
        for namespace, name in (("a", "nightly"), ("b", f"{MARKER}-nightly")):
            body = {"namespace": namespace, "name": name, "roles": {"r": {"command": name}}}
            body |= {"schedule": {"cron": "0 3 * * *"}}
            assert (await self.call("root", "POST", "/jobs", body)).status == 201
        await self.server.until(lambda c: getattr(c.gangs[urgent].job.pending, "nomination", None))

    @property
    def secrets(self) -> set[str]:
        """What an answer to a user of namespace a must not contain."""
        return {MARKER, *(self.jobs[name] for name in self.jobs if name.startswith(MARKER))}


@pytest_asyncio.fixture
async def contest() -> AsyncIterator[Contest]:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        contest = Contest(server)
        await contest.play()
        yield contest


def user_routes(server: Running) -> list[tuple[str, str]]:
    """Every route that a user may read, as method and path."""
    return sorted(
        ("GET", re.sub(r":\w+(?=})", "", route.path_format))
        for route in create_app(server.services).routes
        if isinstance(route, HTTPRoute) and not route.path.startswith(OPENAPI_PATH)
        for handler in route.route_handlers
        if "GET" in handler.http_methods and "user" in handler.opt.get(ALLOWED, ())
    )


async def test_no_answer_names_a_job_of_another_namespace(contest: Contest) -> None:
    mine, urgent = contest.jobs["mine"], contest.jobs["urgent"]
    bodies: dict[str, str] = {}
    routes = user_routes(contest.server)
    assert len(routes) > 14
    for method, pattern in routes:
        if pattern == "/events":
            continue  # it has no end: see the next test
        for job in (mine, urgent):
            path = re.sub(r"{(job_id|task)}", job, pattern)
            path = path.replace("{namespace}", "a").replace("{name}", "nightly")
            path = path.replace("/queues/nightly", "/queues/default")
            reply = await contest.call("ann", method, path)
            # Neither job is an array.
            expected = (409,) if pattern.endswith("/elements") else (200, 204)
            assert reply.status in expected, (path, reply)
            bodies[path] = json.dumps(reply.body, default=str)
    role = {"command": "x", "resources": {"gpu": 1}}
    plan: dict[str, Any] = {"namespace": "a", "roles": {"r": role}}
    for priority in (0, 99):
        reply = await contest.call("ann", "POST", "/plan", plan | {"priority": priority})
        assert reply.status == 200, reply
        bodies[f"/plan {priority}"] = json.dumps(reply.body)
    for path, body in bodies.items():
        assert not [secret for secret in contest.secrets if secret in body], (path, body)
    # The answers still say what happens.
    assert HIDDEN_JOB in bodies[f"/jobs/{mine}/events"]
    assert HIDDEN_JOB in bodies[f"/jobs/{mine}"]  # in the work that it lost
    assert HIDDEN_TASK in bodies[f"/jobs/{urgent}/why"]
    assert HIDDEN_TASK in bodies[f"/jobs/{urgent}/events"]
    [worker] = json.loads(bodies["/workers"])
    assert (worker["tasks"], worker["task_count"]) == ([], 1)
    # An admin sees the names.
    told = json.dumps((await contest.call("root", "GET", f"/jobs/{mine}/events")).body)
    assert f"preempted by higher-priority job b/{MARKER}-big" in told


async def test_the_event_stream_names_no_job_of_another_namespace(contest: Contest) -> None:
    headers = {"authorization": "Bearer ann"}
    lines: list[str] = []
    async with contest.server.client.stream("GET", "/events?since=0", headers=headers) as stream:
        async for line in stream.aiter_lines():
            lines.append(line)
            if "CapacityKept" in line and line.startswith("data"):
                break
    text = "\n".join(lines)
    assert "JobEvicted" in text
    assert HIDDEN_JOB in text
    assert not [secret for secret in contest.secrets if secret in text], text


async def test_jobs_of_another_namespace_do_not_exist_for_a_user(contest: Contest) -> None:
    theirs = contest.jobs[f"{MARKER}-big"]
    job: dict[str, Any] = {"namespace": "a", "roles": {"r": {"command": "x"}}}
    for unknown in (theirs, "j-00000000"):
        for path in ("/jobs", "/plan"):
            reply = await contest.call("ann", "POST", path, job | {"after": [unknown]})
            assert reply.status == 400, reply
            [detail] = reply.body["error"]["details"]
            assert detail["message"] == f"is {unknown}, which does not exist"
        batch = await contest.call("ann", "POST", "/jobs:batch", [job | {"after": [unknown]}])
        assert (batch.body["accepted"], batch.body["refused"]) == (0, 1)
    # The end of a group member ends the group: nobody may tie a job of another namespace to it.
    grouped = job | {"name": "tie", "group": [f"b/{MARKER}-next"]}
    for path in ("/jobs", "/plan"):
        reply = await contest.call("ann", "POST", path, grouped)
        assert (reply.status, reply.body["error"]["code"]) == (403, "forbidden"), reply
    for method, path in (
        ("GET", "/jobs?namespace=b"),
        ("GET", "/crons?namespace=b"),
        *(("GET", f"/jobs/{theirs}{rest}") for rest in ("", "/tasks", "/events", "/why", "/logs")),
        *(("POST", f"/jobs/{theirs}/{verb}") for verb in ("hold", "release", "requeue", "retry")),
        ("GET", f"/jobs/{theirs}.0/checkpoint"),
        ("GET", f"/gangs/{theirs}"),
        ("DELETE", f"/jobs/{theirs}"),
        ("GET", f"/crons/b/{MARKER}-nightly"),
        ("POST", f"/crons/b/{MARKER}-nightly/run"),
        ("DELETE", f"/crons/b/{MARKER}-nightly"),
    ):
        assert (await contest.call("ann", method, path)).status in (403, 404), path


async def test_names_and_keys_belong_to_their_namespace(contest: Contest) -> None:
    same = {"roles": {"r": {"command": "x"}}, "name": f"{MARKER}-big"}
    key = {"Idempotency-Key": "same"}
    ids = set()
    for by, namespace in (("root", "b"), ("ann", "a")):
        body = same | {"namespace": namespace, "name": f"key-of-{namespace}"}
        headers = {"authorization": f"Bearer {by}", **key}
        reply = await contest.server.call("POST", "/jobs", body, **headers)
        assert reply.status == 201, reply
        ids.add(reply.body["id"])
    assert len(ids) == 2
    taken = await contest.call("ann", "POST", "/jobs", same | {"namespace": "a"})
    assert taken.status == 201, taken


async def test_a_job_that_holds_another_back_is_not_named(contest: Contest) -> None:
    gangs = await contest.server.engine.do(lambda turn: turn.cluster.gangs)
    theirs = contest.jobs[f"{MARKER}-big"]
    reason = visible_reason(ANN, HeldBack(theirs, None), gangs)
    assert str(reason) == f"held back: starting now would delay {HIDDEN_JOB}"
    named = visible_reason(PRINCIPALS["root"], HeldBack(theirs, None), gangs)
    assert named == HeldBack(theirs, None)


POD_GROUP = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: of-volcano}
spec: {minAvailable: 1, tasks: [{name: w, replicas: 1, template: {spec: {containers:
  [{name: c, command: [sleep, '1']}]}}}]}
"""


async def test_a_user_of_one_namespace_need_not_name_it(contest: Contest) -> None:
    native = {"name": "native", "roles": {"r": {"command": "x"}}}
    short = {"command": "x"}
    for body in (native, short, yaml.safe_load(POD_GROUP)):
        reply = await contest.call("ann", "POST", "/jobs", body)
        assert reply.status == 201, reply
        shown = await contest.call("ann", "GET", f"/jobs/{reply.body['id']}")
        assert shown.body["namespace"] == "a"
    batch = await contest.call("ann", "POST", "/jobs:batch", [short])
    assert batch.body["accepted"] == 1, batch
    elsewhere = await contest.call("ann", "POST", "/jobs", native | {"namespace": "default"})
    assert elsewhere.status == 403, elsewhere
    several = await contest.call("eve", "POST", "/jobs", native)
    assert several.body["error"]["message"] == (
        "eve may not use namespace default; its namespaces are: a, c; name one of them"
    )
