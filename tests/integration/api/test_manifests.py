"""Files of any dialect over HTTP, accepted or refused as a whole."""

from typing import Any

import pytest

from phalanx.host.clock import wall_clock
from phalanx.identity.principal import Principal
from phalanx.store.memory import MemoryStore
from tests.integration.api.serving import Reply, Running, serving
from tests.manifests import pod

GROUP = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: nginx}
spec: {minMember: 2}
"""
LABELS = "{scheduling.x-k8s.io/pod-group: nginx}"
QUEUE = """
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: research}
spec: {weight: 3}
"""
IMAGE = "{name: imaged, roles: {w: {image: train:7b, command: train}}}"


async def send(server: Running, text: str, path: str = "/jobs", **headers: str) -> Reply:
    return await server.call(
        "POST", path, text.encode(), content_type="application/yaml", **headers
    )


async def names(server: Running) -> list[str]:
    found: dict[str, Any] = (await server.call("GET", "/jobs")).body
    return sorted(job["name"] for job in found["jobs"])


async def test_a_gang_of_pods_is_one_job(on_each_store: Running) -> None:
    text = GROUP + pod("web-0", labels=LABELS) + pod("web-1", labels=LABELS)
    made = await send(on_each_store, text)
    assert (made.status, made.body["name"], made.body["size"]) == (201, "nginx", 2)
    shown = (await on_each_store.call("GET", f"/jobs/{made.body['id']}")).body
    assert shown["spec"]["roles"] == {"web": {"replicas": 2, "command": ["train"]}}


async def test_json_of_a_dialect_is_read_too(server: Running) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {"containers": [{"command": ["train"]}]},
    }
    made = await server.call("POST", "/jobs", document)
    assert (made.status, made.body["name"]) == (201, "one")


async def test_several_jobs_of_a_file_are_submitted_together(on_each_store: Running) -> None:
    server = on_each_store
    made = await send(server, pod("a") + pod("b"), idempotency_key="k")
    assert (made.status, made.body["accepted"], made.body["refused"]) == (201, 2, 0)
    ids = [one["job"]["id"] for one in made.body["results"]]
    again = await send(server, pod("a") + pod("b"), idempotency_key="k")
    assert (again.status, [one["job"]["id"] for one in again.body["results"]]) == (200, ids)
    assert await names(server) == ["a", "b"]


async def test_one_job_that_the_server_refuses_keeps_all_others_out(on_each_store: Running) -> None:
    server = on_each_store
    await send(server, pod("b"))
    refused = await send(
        server, pod("a") + pod("b") + "---\n{name: c, queue: x, roles: {w: {command: t}}}"
    )
    assert refused.status == 400
    assert [one["path"] for one in refused.body["error"]["details"]] == [
        "job c: queue",
        "job b: name",
    ]
    assert await names(server) == ["b"]


async def test_one_document_that_is_wrong_keeps_all_others_out(server: Running) -> None:
    refused = await send(server, pod("a") + pod("b", spec="volumes: [{}]"))
    assert refused.status == 400
    assert [one["path"] for one in refused.body["error"]["details"]] == ["document 2: spec.volumes"]
    assert await names(server) == []


async def test_unsupported_fields_can_be_dropped_with_a_warning(server: Running) -> None:
    text = pod("b", spec="volumes: [{}]")
    made = await send(server, text, "/jobs?ignore_unsupported=true")
    assert made.status == 201
    told = [one for one in made.body["warnings"] if one["type"] == "Unsupported"]
    assert [one["path"] for one in told] == ["document 1: spec.volumes"]
    assert told[0]["message"] == "document 1: spec.volumes is not supported; it was ignored"
    planned = await send(
        server, text.replace("name: b", "name: c"), "/plan?ignore_unsupported=true"
    )
    assert told[0] in planned.body["warnings"]


async def test_a_job_with_an_image_is_pending_unless_the_image_is_ignored(server: Running) -> None:
    worker = {"id": "w", "exec_addr": "w:1", "resources": {"cpu": 4}}
    assert (await server.call("POST", "/workers/register", worker)).status in (200, 201)
    planned = (await send(server, IMAGE, "/plan")).body
    assert planned["reason"]["type"] == "NoNodeMatches"
    assert planned["reason"]["selector"] == {"runtime": "containers"}
    assert (await send(server, IMAGE, "/plan?ignore_image=true")).body["starts"]
    made = (await send(server, IMAGE, "/jobs?ignore_image=true")).body
    shown = (await server.call("GET", f"/jobs/{made['id']}")).body
    assert shown["spec"]["roles"] == {"w": {"command": "train"}}


async def test_queues_and_the_jobs_that_use_them_can_be_in_one_file(on_each_store: Running) -> None:
    server = on_each_store
    made = await send(server, "{name: c, queue: research, roles: {w: {command: t}}}" + QUEUE)
    assert (made.status, made.body["queues"], made.body["accepted"]) == (201, ["research"], 1)
    assert (await server.call("GET", "/queues/research")).body["weight"] == 3


async def test_a_file_that_is_refused_sets_no_queue(server: Running) -> None:
    refused = await send(server, "{name: c, queue: other, roles: {w: {command: t}}}" + QUEUE)
    assert [one["path"] for one in refused.body["error"]["details"]] == ["job c: queue"]
    child = await send(server, QUEUE.replace("weight: 3", "parent: nobody"))
    assert [one["path"] for one in child.body["error"]["details"]] == ["queue research: parent"]
    assert (await server.call("GET", "/queues/research")).status == 404


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ('schedule: {cron: "0 0 2 * * *"}', "schedule.cron"),
        ('schedule: {cron: "0 2 * * *", timezone: Mars/Olympus}', "schedule.timezone"),
    ],
)
async def test_a_schedule_that_is_never_due_is_refused(
    server: Running, line: str, path: str
) -> None:
    refused = await send(server, f"name: n\nroles: {{w: {{command: t}}}}\n{line}")
    assert [one["path"] for one in refused.body["error"]["details"]] == [path]


class Bob:
    """Every request comes from a user of the namespace ml."""

    async def principal(self, bearer: str | None, *, loopback: bool) -> Principal:
        del bearer, loopback
        return Principal("bob", "user", ("ml",))


async def test_a_file_is_refused_if_its_user_may_not_submit_all_of_it() -> None:
    async with serving(MemoryStore(clock=wall_clock), auth=Bob()) as server:
        assert (await send(server, QUEUE)).status == 403
        mixed = await send(server, pod("a", namespace="ml") + pod("b", namespace="web"))
        assert (mixed.status, await names(server)) == (403, [])
        assert (await send(server, pod("a", namespace="ml"))).status == 201


# Gangs submitted in parts


async def why(server: Running, job: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await server.call("GET", f"/jobs/{job}/why")).body
    return answer


async def test_a_gang_is_completed_by_several_files(on_each_store: Running) -> None:
    server = on_each_store
    first = await send(server, pod("web-0", labels=LABELS))
    assert (first.status, first.body["size"]) == (201, 1)
    assert first.body["reason"]["type"] == "WaitingForMembers"
    job = first.body["id"]
    told = await why(server, job)
    assert told["message"] == ("pending: 1 member submitted, the PodGroup is missing")
    assert told["remedy"] == "submit the missing members"
    second = await send(server, GROUP)
    assert (second.status, second.body["id"], second.body["reason"]["seen"]) == (200, job, 1)
    third = await send(server, pod("web-1", labels=LABELS))
    assert (third.body["id"], third.body["size"], "reason" in third.body) == (job, 2, False)
    shown = (await server.call("GET", f"/jobs/{job}")).body
    assert shown["spec"]["roles"] == {"web": {"replicas": 2, "command": ["train"]}}
    assert [task["state"] for task in shown["tasks"]] == ["pending"] * 2
    assert await names(server) == ["nginx"]


async def test_a_pod_group_can_be_submitted_before_its_pods(on_each_store: Running) -> None:
    server = on_each_store
    job = (await send(server, GROUP)).body["id"]
    assert (await why(server, job))["message"] == "pending: 0 of 2 members submitted"
    text = pod("web-0", labels=LABELS) + pod("web-1", labels=LABELS)
    assert (await send(server, text)).body["id"] == job


async def test_parts_of_a_batch_join_each_other(server: Running) -> None:
    text = GROUP + pod("web-0", labels=LABELS) + pod("web-1", labels=LABELS)
    made = (await send(server, text, "/jobs:batch")).body
    assert len({one["job"]["id"] for one in made["results"]}) == 1
    assert made["results"][-1]["job"]["size"] == 2


async def test_a_part_that_is_sent_again_with_its_key_joins_once(server: Running) -> None:
    job = (await send(server, GROUP)).body["id"]
    for _ in range(2):
        made = await send(server, pod("web-0", labels=LABELS), idempotency_key="k")
        assert (made.status, made.body["id"], made.body["size"]) == (200, job, 1)
    refused = await send(server, pod("web-0", labels=LABELS))
    assert refused.body["error"]["details"][0]["message"].startswith("is web-0, a member that")


async def test_members_join_a_complete_gang_beyond_its_total(
    on_each_store: Running,
) -> None:
    prefix = "gang.scheduling.koordinator.sh/"
    words = f"{{{prefix}name: web, {prefix}min-available: 2, {prefix}total-number: 3}}"
    pods = [pod(f"web-{n}", annotations=words) for n in range(4)]
    first = await send(on_each_store, pods[0] + pods[1])
    job = first.body["id"]
    second = await send(on_each_store, pods[2])
    assert (second.status, second.body["id"], second.body["size"]) == (200, job, 3)
    assert "BeyondTotal" not in str(second.body["warnings"])
    third = await send(on_each_store, pods[3])
    assert third.body["size"] == 4
    assert "4 members, more than its total-number of 3" in str(third.body["warnings"])


async def test_a_part_at_odds_keeps_the_whole_file_out(server: Running) -> None:
    await send(server, GROUP + pod("web-0", labels=LABELS, spec="priority: 5"))
    refused = await send(server, pod("web-1", labels=LABELS, spec="priority: 7") + pod("other"))
    assert refused.status == 400
    [problem] = refused.body["error"]["details"]
    assert problem["path"] == "job nginx: priority"
    assert problem["message"].startswith("is 7 for web-1 and 5 for web-0")
    assert await names(server) == ["nginx"]


async def test_a_gang_of_another_namespace_is_another_gang(server: Running) -> None:
    first = await send(server, GROUP)
    other = await send(server, pod("web-0", labels=LABELS, namespace="ml"))
    assert (other.status, other.body["id"] == first.body["id"]) == (201, False)


async def test_a_part_that_was_cancelled_is_retried_as_a_part(server: Running) -> None:
    job = (await send(server, GROUP + pod("web-0", labels=LABELS))).body["id"]
    await server.call("DELETE", f"/jobs/{job}")
    again = (await server.call("POST", f"/jobs/{job}/retry")).body
    assert again["reason"]["seen"] == 1
    made = await send(server, pod("web-1", labels=LABELS))
    assert (made.body["id"], "reason" in made.body) == (again["id"], False)


async def test_a_question_is_about_a_whole_gang(server: Running) -> None:
    asked = await send(server, GROUP + pod("web-0", labels=LABELS), "/plan")
    assert asked.status == 400
    assert asked.body["error"]["details"][0]["path"] == "document 1: spec.minMember"
