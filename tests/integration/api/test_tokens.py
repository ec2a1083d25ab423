"""Who may call what: users in their namespaces, workers for workers, admins everything."""

import re

from litestar.routes import HTTPRoute

from phalanx.api.app import create_app
from phalanx.api.auth import ALLOWED
from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal, Unauthorised
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Reply, Running, serving

PRINCIPALS = {
    "t-ann": Principal("ann", "user", ("ml",)),
    "t-bob": Principal("bob", "user", ("default", "cv")),
    "t-eve": Principal("eve", "user", ("*",)),
    "t-w": Principal("w", "worker", workers="*"),
    "t-agent": Principal("worker:w", "agent", workers="w"),
    "t-join": Principal("rack", "join", workers="*"),
    "t-root": Principal("root", "admin"),
}


class Tokens:
    """Every request requires a token, also on loopback."""

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        assert loopback
        if bearer not in PRINCIPALS:
            raise Unauthorised("this token is not known; make one with phalanx token create")
        return PRINCIPALS[bearer]


async def call(
    server: Running, token: str | None, method: str, path: str, body: object = None
) -> Reply:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return await server.call(method, path, body, **headers)


def job(namespace: str = "ml", **fields: object) -> dict[str, object]:
    return {"namespace": namespace, "roles": {"w": {"command": "x"}}, **fields}


WHO_AM_I = ("GET", "/whoami")
USERS_MAY = [
    WHO_AM_I,
    ("POST", "/jobs"),
    ("POST", "/jobs:batch"),
    ("POST", "/plan"),
    ("GET", "/jobs"),
    ("GET", "/jobs/j-0"),
    ("DELETE", "/jobs/j-0"),
    ("POST", "/jobs/j-0/hold"),
    ("POST", "/jobs/j-0/retry"),
    ("GET", "/jobs/j-0/why"),
    ("GET", "/jobs/j-0/logs"),
    ("GET", "/workers"),
    ("GET", "/queues"),
    ("GET", "/gangs/j-0"),
    ("GET", "/jobs/j-0/tasks"),
    ("GET", "/metrics"),
    ("GET", "/jobs/j-0.0/checkpoint"),
]
PLAIN_WORKERS_MAY = [
    WHO_AM_I,
    ("GET", "/jobs/next"),
    ("POST", "/jobs/j-0/heartbeat"),
    ("POST", "/jobs/j-0/done"),
    ("POST", "/jobs/j-0/fail"),
    ("POST", "/jobs/j-0/preempted?epoch=1"),
    ("POST", "/jobs/j-0/checkpointed?epoch=1"),
    ("POST", "/jobs/j-0/checkpoint?epoch=1"),
    ("GET", "/jobs/j-0.0/checkpoint"),
    ("POST", "/workers/register"),
    ("POST", "/workers/w/heartbeat"),
]
AGENTS_MAY = [
    WHO_AM_I,
    ("POST", "/jobs/j-0/checkpoint?epoch=1"),
    ("GET", "/jobs/j-0.0/checkpoint"),
    ("POST", "/workers/register"),
    ("POST", "/workers/w/sync"),
    ("POST", "/workers/w/output?task=j-0.0&attempt=1&offset=0"),
    ("POST", "/workers/w/credential"),
]
JOINING_MAY = [WHO_AM_I, ("POST", "/workers/join")]
ADMINS_MAY = [
    ("DELETE", "/workers/w"),
    ("POST", "/workers/w/cordon"),
    ("POST", "/workers/w/uncordon"),
    ("POST", "/workers/w/drain"),
    ("POST", "/workers/brake/release"),
    ("POST", "/queues/q/stop"),
    ("POST", "/queues/q/start"),
    ("PUT", "/queues/q"),
    ("DELETE", "/queues/q"),
    ("GET", "/tokens"),
    ("POST", "/tokens"),
    ("DELETE", "/tokens/t"),
    ("POST", "/tokens/t/rotate"),
]
ROUTES = dict.fromkeys(USERS_MAY + PLAIN_WORKERS_MAY + AGENTS_MAY + JOINING_MAY + ADMINS_MAY)


async def test_each_role_may_call_its_routes_and_no_others() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        for method, path in ROUTES:
            for token, mine in (
                ("t-ann", (method, path) in USERS_MAY),
                ("t-w", (method, path) in PLAIN_WORKERS_MAY),
                ("t-agent", (method, path) in AGENTS_MAY),
                ("t-join", (method, path) in JOINING_MAY),
                ("t-root", True),
            ):
                reply = await call(server, token, method, path)
                assert (reply.status != 403) == mine, (method, path, token, reply)
            for wrong in (None, "t-nobody"):
                reply = await call(server, wrong, method, path)
                assert (reply.status, reply.body["error"]["code"]) == (401, "unauthorised")


async def test_every_route_for_workers_is_in_the_lists_above() -> None:
    """Each of them checks the worker: see `test_worker_identity.py`."""
    async with serving(MemoryStore(clock=wall_clock)) as server:
        for role, listed in (
            ("worker", PLAIN_WORKERS_MAY),
            ("agent", AGENTS_MAY),
            ("join", JOINING_MAY),
        ):
            routes = {
                (method, re.sub(r"{(\w+):str}", r"{\1}", route.path_format))
                for route in create_app(server.services).routes
                if isinstance(route, HTTPRoute)
                for handler in route.route_handlers
                if role in handler.opt.get(ALLOWED, ())
                for method in handler.http_methods
            }
            for method, path in listed:
                plain = path.partition("?")[0].replace("/w/", "/{worker_id}/")
                routes.discard((method, re.sub(r"/j-0[^/]*", "/{task}", plain)))
            assert not routes, role


async def test_users_see_and_touch_only_their_namespaces() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        made = await call(server, "t-ann", "POST", "/jobs", job("ml"))
        assert (made.status, made.body["owner"]) == (201, "ann")
        path = f"/jobs/{made.body['id']}"
        refused = await call(server, "t-bob", "POST", "/jobs", job("ml"))
        assert (refused.status, refused.body["error"]["code"]) == (403, "forbidden")
        assert (await call(server, "t-bob", "POST", "/plan", job("ml"))).status == 403
        batch = await call(server, "t-bob", "POST", "/jobs:batch", [job("ml"), job("cv")])
        assert (batch.body["accepted"], batch.body["refused"]) == (1, 1)
        for method, what in (
            *(("GET", ""), ("DELETE", ""), ("POST", "/hold"), ("POST", "/requeue")),
            *(("POST", "/retry"), ("GET", "/events"), ("GET", "/why"), ("GET", "/checkpoint")),
            ("GET", "/logs"),
        ):
            assert (await call(server, "t-bob", method, path + what)).status == 404
            assert (await call(server, "t-eve", method, path + what)).status != 404
        assert (await call(server, "t-bob", "GET", "/jobs?namespace=ml")).status == 403


async def test_lists_are_confined_to_the_namespaces_of_the_user() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        ids: dict[str, list[str]] = {}
        for namespace in ("ml", "cv", "default", "other", "cv"):
            made = await call(server, "t-root", "POST", "/jobs", job(namespace))
            ids.setdefault(namespace, []).append(made.body["id"])
        for namespace in ("ml", "cv"):
            await call(server, "t-root", "DELETE", f"/jobs/{ids[namespace][0]}")
        for token, namespaces in (
            ("t-ann", {"ml"}),
            ("t-bob", {"cv", "default"}),
            ("t-eve", set(ids)),
            ("t-root", set(ids)),
        ):
            page = (await call(server, token, "GET", "/jobs")).body
            assert {found["namespace"] for found in page["jobs"]} == namespaces
        assert len((await call(server, "t-bob", "GET", "/jobs")).body["jobs"]) == 3


async def test_health_and_the_description_need_no_token() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Tokens()) as server:
        for path in ("/health", "/healthz", "/readyz", "/openapi/openapi.json"):
            assert (await call(server, None, "GET", path)).status == 200
        assert (await call(server, None, "GET", "/metrics")).status == 401
