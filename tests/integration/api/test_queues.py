"""Queues over HTTP: what is set is shown, kept, and has its defaults."""

from tests.integration.api.serving import Running

RULES = {
    "weight": 0,
    "priority": -5,
    "preempt_within_queue": "lower_or_newer_equal",
    "reclaim_from_siblings": "lower_priority",
    "reclaimable": False,
    "non_preemptible_within_quota": True,
    "consolidation": True,
    "max_priority": 7,
}


async def test_the_rules_of_a_queue_are_kept_as_they_were_set(on_each_store: Running) -> None:
    server = on_each_store
    answer = await server.call("PUT", "/queues/scavengers", {**RULES, "quota": {"gpu": 2}})
    assert answer.status == 200
    expected = {"name": "scavengers", **RULES, "quota": {"gpu": 2}, "limit": {}}
    assert answer.body == expected
    assert (await server.call("GET", "/queues/scavengers")).body == expected


async def test_stopping_a_queue_leaves_its_rules_alone(server: Running) -> None:
    await server.call("PUT", "/queues/scavengers", RULES)
    await server.call("POST", "/queues/scavengers/stop")
    found = (await server.call("POST", "/queues/scavengers/start")).body
    assert {field: found[field] for field in RULES} == RULES


async def test_fields_that_are_left_out_get_their_default(server: Running) -> None:
    await server.call("PUT", "/queues/q", RULES)
    found = (await server.call("PUT", "/queues/q", {})).body
    assert found == {"name": "q", "weight": 1, "quota": {}, "limit": {}}


async def test_a_namespace_that_a_queue_does_not_admit_is_refused_on_every_way_in(
    server: Running,
) -> None:
    await server.call("PUT", "/queues/ml-training", {"namespaces": ["ml", "team-*"]})
    job = {"name": "x", "queue": "ml-training", "roles": {"r": {"command": "x"}}}
    refused, admitted = job | {"namespace": "web"}, job | {"namespace": "team-a"}
    cron = refused | {"schedule": {"cron": "0 2 * * *"}}
    for path, body in (
        ("/jobs", refused),
        ("/jobs", [refused]),
        ("/plan", refused),
        ("/jobs", cron),
    ):
        reply = await server.call("POST", path, body)
        assert reply.status == 403, reply
        error = reply.body["error"]
        assert error["code"] == "forbidden"
        assert error["message"].startswith("namespace web may not use queue ml-training")
    batch = await server.call("POST", "/jobs:batch", [refused, admitted])
    assert (batch.body["accepted"], batch.body["refused"]) == (1, 1)
    assert (await server.call("POST", "/plan", admitted | {"name": "y"})).status == 200


async def test_a_priority_above_that_of_the_queue_is_refused_on_every_way_in(
    server: Running,
) -> None:
    await server.call("PUT", "/queues/shared", {"max_priority": 100})
    await server.call("PUT", "/queues/ours", {"parent": "shared", "max_priority": 900})
    job = {"name": "x", "queue": "ours", "priority": 101, "roles": {"r": {"command": "x"}}}
    admitted = (await server.call("POST", "/jobs", job | {"priority": 100})).body
    for path, body in (
        ("/jobs", job | {"name": "y"}),
        ("/plan", job | {"name": "y"}),
        ("/jobs", job | {"schedule": {"cron": "0 2 * * *"}}),
        (f"/jobs/{admitted['id']}/priority", {"priority": 101}),
    ):
        reply = await server.call("POST", path, body)
        assert reply.status == 403, reply
        assert reply.body["error"]["message"] == (
            "priority 101 exceeds the max_priority of queue shared, which is 100; use at most that,"
            " or ask an admin to raise it"
        )
    short = {"command": "x", "queue_name": "ours", "priority": 101}
    assert (await server.call("POST", "/jobs", short)).status == 403
