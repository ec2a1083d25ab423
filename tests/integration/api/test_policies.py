"""Policies decide about every route that changes something, or a reason says why not."""

from collections.abc import Iterator

import pytest
from litestar.handlers import HTTPRouteHandler

from phalanx.api.app import create_routes
from phalanx.api.route_policies import DECIDED_BY
from phalanx.policy.authorizer import KIND
from phalanx.policy.schema import STARTER
from phalanx.store.protocol import ClusterObject
from tests.integration.api.serving import Running

_WORKER = "workers report and renew only what is their own, with a credential of their own"
_JOIN = "a join token says which workers may join"
_ALWAYS = "admins can always correct policies and tokens, or a mistake would lock them out"
_NOTHING = "nothing is changed"
_SESSION = "a session has the rights of its token"
#: Routes that no policy decides about, each with the reason.
NOT_DECIDED = {
    "POST /jobs/{}/checkpoint": _WORKER,
    "POST /jobs/{}/checkpointed": _WORKER,
    "POST /jobs/{}/done": _WORKER,
    "POST /jobs/{}/fail": _WORKER,
    "POST /jobs/{}/heartbeat": _WORKER,
    "POST /jobs/{}/preempted": _WORKER,
    "POST /workers/register": _WORKER,
    "POST /workers/{}/credential": _WORKER,
    "POST /workers/{}/heartbeat": _WORKER,
    "POST /workers/{}/output": _WORKER,
    "POST /workers/{}/sync": _WORKER,
    "POST /workers/join": _JOIN,
    "PUT /policies": _ALWAYS,
    "POST /tokens": _ALWAYS,
    "POST /tokens/{}/rotate": _ALWAYS,
    "DELETE /tokens/{}": _ALWAYS,
    "POST /policies/check": _NOTHING,
    "POST /policies/test": _NOTHING,
    "POST /queues/{}/plan": _NOTHING,
    "POST /session": _SESSION,
    "DELETE /session": _SESSION,
}
#: A request to each route that policies decide about.
JOB = {"roles": {"worker": {"command": "true"}}}
REQUESTS = {
    "POST /jobs": ("/jobs", JOB),
    "POST /jobs:batch": ("/jobs:batch", [JOB]),
    "POST /plan": ("/plan", JOB),
    "POST /jobs/{}/retry": ("/jobs/{ended}/retry", None),
    "DELETE /jobs/{}": ("/jobs/{job}", None),
    "POST /jobs/{}/hold": ("/jobs/{job}/hold", None),
    "POST /jobs/{}/release": ("/jobs/{job}/release", None),
    "POST /jobs/{}/requeue": ("/jobs/{job}/requeue", None),
    "POST /jobs/{}/priority": ("/jobs/{job}/priority", {"priority": 1}),
    "DELETE /crons/{}/{}": ("/crons/default/nightly", None),
    "POST /crons/{}/{}/pause": ("/crons/default/nightly/pause", None),
    "POST /crons/{}/{}/resume": ("/crons/default/nightly/resume", None),
    "POST /crons/{}/{}/run": ("/crons/default/nightly/run", None),
    "PUT /secrets/{}/{}": ("/secrets/default/hub", {"data": {"token": "t"}}),
    "DELETE /secrets/{}/{}": ("/secrets/default/hub", None),
    "PUT /queues/{}": ("/queues/train", {"weight": 2}),
    "PUT /queues": ("/queues", [{"kind": "Queue", "name": "train"}]),
    "POST /queues/{}/stop": ("/queues/default/stop", None),
    "POST /queues/{}/start": ("/queues/default/start", None),
    "DELETE /queues/{}": ("/queues/default", None),
    "DELETE /workers/{}": ("/workers/w-1", None),
    "POST /workers/{}/cordon": ("/workers/w-1/cordon", None),
    "POST /workers/{}/uncordon": ("/workers/w-1/uncordon", None),
    "POST /workers/{}/drain": ("/workers/w-1/drain", None),
    "POST /workers/brake/release": ("/workers/brake/release", None),
}


def changing_routes() -> Iterator[tuple[str, str]]:
    """Method and path of each route that can change something, with the action that decides."""
    for route in create_routes("1").routes:
        for handler in getattr(route, "route_handlers", ()):
            assert isinstance(handler, HTTPRouteHandler)
            parts = ["{}" if part.startswith("{") else part for part in route.path.split("/")]
            for method in handler.http_methods - {"GET", "HEAD", "OPTIONS"}:
                yield f"{method} {'/'.join(parts)}", handler.opt.get(DECIDED_BY, "")


def test_a_policy_decides_about_every_change_or_a_reason_says_why_not() -> None:
    routes = dict(changing_routes())
    undecided = {route for route, action in routes.items() if not action}
    assert undecided == set(NOT_DECIDED)
    assert set(routes) - undecided == set(REQUESTS)


async def test_a_policy_that_forbids_everything_refuses_every_change(server: Running) -> None:
    names = {}
    for name in ("job", "ended"):
        names[name] = (await server.call("POST", "/jobs", JOB)).body["id"]
    await server.call("DELETE", f"/jobs/{names['ended']}")
    cron = JOB | {"name": "nightly", "schedule": {"cron": "0 2 * * *"}}
    assert (await server.call("POST", "/jobs", cron)).status == 201
    await server.call("POST", "/workers/register", {"id": "w-1"})
    forbid = '@id("frozen") forbid (principal, action, resource);'
    policies = [ClusterObject(KIND, "", "a.cedar", STARTER + forbid, 1)]
    await server.services.objects.change(policies)
    actions = dict(changing_routes())
    for route, (path, body) in REQUESTS.items():
        method = route.partition(" ")[0]
        reply = await server.call(method, path.format(**names), body)
        text = str(reply.body)
        assert f"policy frozen forbids {actions[route]} on" in text, (route, text)
        assert reply.status == (200 if route == "POST /jobs:batch" else 403), (route, text)


@pytest.mark.parametrize("change", ["PUT", "DELETE"])
async def test_a_secret_is_changed_only_by_those_whom_a_policy_permits(
    server: Running, change: str
) -> None:
    forbid = """@id("vault") forbid (principal, action == Action::"ManageSecret", resource)
    when { resource.name == "prod" };"""
    policies = [ClusterObject(KIND, "", "a.cedar", STARTER + forbid, 1)]
    await server.services.objects.change(policies)
    body = {"data": {"token": "t"}} if change == "PUT" else None
    reply = await server.call(change, "/secrets/default/prod", body)
    message = "policy vault forbids ManageSecret on secret default/prod for this caller"
    assert (reply.status, reply.body["error"]["message"]) == (403, message)
    reply = await server.call(change, "/secrets/default/other", body)
    assert reply.status in (404, 409), "no key for secrets, or no secret: past the policies"


async def test_the_list_names_the_file_of_each_policy(server: Running) -> None:
    files = {"base.cedar": STARTER, "trust.yaml": "kind: TrustPolicy\nname: ml-images"}
    assert (await server.call("PUT", "/policies", {"files": files})).status == 200
    listed = (await server.call("GET", "/policies")).body["policies"]
    assert listed[-1] == {"id": "ml-images", "effect": "trust", "file": "trust.yaml"}
    assert {each["file"] for each in listed} == set(files)
