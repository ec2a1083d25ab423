"""`phalanx.Client` against a real server."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx import AsyncClient, Client
from phalanx.client import ConflictError, InvalidError, NotFoundError
from phalanx.core.model import Phase
from phalanx.core.records import JobEnded, JobHeld, JobSubmitted
from phalanx.core.spec.validation import job_spec
from tests.acceptance.terminal import Server, Worker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("sdk")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as connected:
        yield connected


@pytest.fixture
def worker(server: Server, client: Client) -> Iterator[Worker]:
    """With nothing to do but what the test gives it."""
    for job in client.jobs():
        if job.finished_at is None:
            client.cancel(job.id)
    with Worker(server.url, "w-1", gpu=2) as running:
        yield running
    client.remove_worker("w-1")


NATIVE = {"roles": {"w": {"command": ["a", "b"], "replicas": 2, "resources": {"gpu": 1}}}}


def test_a_job_can_be_submitted_in_every_form(client: Client) -> None:
    forms = [
        client.submit(NATIVE),
        client.submit(job_spec(NATIVE)),
        client.submit("roles: {w: {command: [a, b], replicas: 2, resources: {gpu: 1}}}"),
    ]
    specs = [client.get(job.id).spec for job in forms]
    assert specs[0] == specs[1] == specs[2]
    client.set_queue("lab")
    short = client.submit(command="a b", gang=2, resources={"gpu": 1}, queue="lab", env={"A": "b"})
    found = client.get(short.id)
    assert (found.size, found.queue) == (2, "lab")
    assert found.spec["roles"]["worker"]["env"] == {"A": "b"}


def test_a_job_with_fields_beside_it_is_refused_without_a_request(client: Client) -> None:
    with pytest.raises(TypeError):
        client.submit(NATIVE, name="x")
    with pytest.raises(TypeError):
        client.submit()


def test_an_invalid_job_is_refused_with_the_path_of_the_problem(client: Client) -> None:
    with pytest.raises(InvalidError) as refused:
        client.submit(command="x", gang=0)
    assert [each.path for each in refused.value.details] == ["roles.worker.replicas"]


def test_many_jobs_are_each_accepted_or_refused(client: Client) -> None:
    reply = client.submit_all([NATIVE, {"roles": {}}])
    assert (reply.accepted, reply.refused) == (1, 1)
    assert client.submit_all("command: a\n---\ncommand: b\n").accepted == 2


def test_lists_are_read_page_by_page(client: Client) -> None:
    made = [client.submit(command="x", namespace="pages").id for _ in range(5)]
    client.cancel(made[0])
    listed = [job.id for job in client.jobs(namespace="pages", page=2)]
    assert listed == [*made[:0:-1], made[0]]


def test_wait_returns_the_ended_job(client: Client, worker: Worker) -> None:
    job = client.submit(command="x", gang=2, resources={"gpu": 1}, name="whole").id
    assert client.find("whole") == job
    for claim in [worker.claim(), worker.claim()]:
        worker.end(claim)
    ended = client.wait(job, timeout_s=60)
    assert ended.phase is Phase.DONE
    assert [task.state for task in client.tasks(job)] == ["done", "done"]
    kinds = [type(event) for event in client.events(job)]
    assert (kinds[0], kinds[-1]) == (JobSubmitted, JobEnded)
    assert kinds == [type(event) for event in client.events(job, follow=True)]


def test_wait_raises_after_its_timeout(client: Client) -> None:
    job = client.submit(command="x", resources={"gpu": 100})
    with pytest.raises(TimeoutError, match=r"is still pending after 0\.2 s"):
        client.wait(job.id, timeout_s=0.2)


def test_watch_yields_every_change_until_the_end(client: Client, worker: Worker) -> None:
    job = client.submit(command="x").id
    watched = client.watch(job)
    # It may have been planned by the time it is looked at.
    assert next(watched).phase in (Phase.PENDING, Phase.STARTING)
    claim = worker.claim()
    assert any(seen.phase is Phase.RUNNING for seen in watched)
    worker.end(claim)
    assert [seen.phase for seen in watched][-1] is Phase.DONE


def test_jobs_are_held_released_prioritised_cancelled_retried_and_requeued(
    client: Client, worker: Worker
) -> None:
    job = client.submit(command="x", resources={"gpu": 100}).id
    assert client.hold(job).on_hold
    assert client.why(job).reason == {"type": "OnHold", "message": "on hold until it is released"}
    assert client.why(job).due == ()
    assert not client.release(job).on_hold
    assert client.set_priority(job, -3).priority == -3
    with pytest.raises(ConflictError, match="only a job that has ended"):
        client.retry(job)
    assert client.cancel(job).phase is Phase.CANCELLED
    assert client.cancel(job).phase is Phase.CANCELLED
    assert client.retry(job).id != job
    runs = client.submit(command="y").id
    claim = worker.claim()
    assert client.requeue(runs).phase is Phase.STOPPING
    worker.preempted(claim)
    assert client.cancel(runs).phase is Phase.CANCELLED
    done = client.submit(command="z").id
    worker.end(worker.claim())
    client.wait(done, timeout_s=60)
    with pytest.raises(ConflictError, match="is done"):
        client.cancel(done)


def test_workers_are_listed_cordoned_and_drained(client: Client, worker: Worker) -> None:
    assert [each.id for each in client.workers()] == [worker.name]
    assert client.cordon(worker.name, reason="new fans").cordoned == "new fans"
    assert client.uncordon(worker.name).status == "active"
    assert client.drain(worker.name, deadline="2h").evicted == ()
    client.uncordon(worker.name)
    with pytest.raises(NotFoundError):
        client.cordon("w-9")


def test_queues_are_set_stopped_started_and_deleted(client: Client) -> None:
    assert client.set_queue("q", weight=3, quota={"gpu": 2}).quota == {"gpu": 2}
    assert client.stop_queue("q").stopped
    assert not client.start_queue("q").stopped
    assert "q" in [queue.name for queue in client.queues()]
    client.delete_queue("q")
    with pytest.raises(NotFoundError):
        client.queue("q")


def test_a_plan_stores_nothing(client: Client, worker: Worker) -> None:
    before = len(list(client.jobs()))
    assert client.plan(NATIVE).starts
    assert not client.plan({"command": "x", "gang_size": 9, "resources": {"gpu": 1}}).starts
    assert len(list(client.jobs())) == before


def test_output_is_read_by_line_and_followed_to_the_end(client: Client, worker: Worker) -> None:
    job = client.submit(command="x").id
    claim = worker.claim()
    followed = client.logs(job, follow=True)
    worker.write(claim, "one\rsame line\u2028still\nzwei ä\n")
    assert next(followed) == "one\rsame line\u2028still"
    assert list(client.logs(job, tail=1)) == ["zwei ä"]
    worker.end(claim)
    assert list(followed) == ["zwei ä"]
    with pytest.raises(NotFoundError):
        list(client.logs(job, task=7))


def test_the_client_continues_after_a_change_of_leader(tmp_path: Path) -> None:
    with (
        Server(tmp_path) as first,
        Server(tmp_path, leads=False) as second,
        Client([second.url, first.url]) as client,
    ):
        with Worker(first.url, "w-1") as worker:
            job = client.submit(command="x").id
            claim = worker.claim()
            worker.write(claim, "before\n")
        story, output = client.events(job, follow=True), client.logs(job, follow=True)
        assert isinstance(next(story), JobSubmitted)
        client.hold(job)
        # Whether it was planned before it was claimed is a matter of moments.
        assert any(isinstance(event, JobHeld) for event in story)
        assert next(output) == "before"
        first.kill()
        second.line("leading")
        with Worker.known(second.url, "w-1") as worker:
            worker.write(claim, "after\n", at=len("before\n"))
            worker.end(claim)
        assert isinstance(list(story)[-1], JobEnded)
        assert list(output) == ["after"]
        assert client.wait(job, timeout_s=60).phase is Phase.DONE


def test_methods_take_an_id_a_name_or_what_submit_returned(client: Client) -> None:
    job = client.submit(command="x", name="reference")
    names = ("reference", "default/reference", job.id[:6], job.id, job)
    assert {client.get(each).id for each in names} == {job.id}
    later = client.submit(command="y", after=[job], afterany=["reference"])
    assert [each.id for each in client.get(later).after] == [job.id]
    assert client.cancel("reference").id == job.id


def test_submit_all_takes_the_fields_of_submit(client: Client) -> None:
    fields = {"command": ["a", "b"], "gang": 2, "resources": {"gpu": 1}, "env": {"A": "1"}}
    reply = client.submit_all([fields, {"command": "a", "gang_size": 3}])
    first, short = (item.job for item in reply.results)
    assert first is not None
    assert short is not None
    assert (first.size, short.size) == (2, 3)
    assert client.get(first).spec["roles"]["worker"]["env"] == {"A": "1"}


def test_a_job_of_a_server_on_this_machine_runs_in_the_current_directory(client: Client) -> None:
    here = client.get(client.submit(command="x")).spec["roles"]["worker"]
    assert here["workdir"] == str(Path.cwd())
    there = client.get(client.submit(command="x", workdir="/srv")).spec["roles"]["worker"]
    assert there["workdir"] == "/srv"


def test_a_client_has_the_namespace_that_it_was_given(server: Server) -> None:
    with Client(server.url, namespace="lab") as client:
        job = client.submit(command="x")
        assert job.namespace == "lab"
        assert client.submit("namespace: other\nroles: {w: {command: x}}").namespace == "other"
        assert client.default_namespace() == "lab"
        assert (client.whoami().role, client.whoami().namespaces) == ("admin", None)


async def test_the_asynchronous_client_has_the_same_operations(
    server: Server, client: Client, worker: Worker
) -> None:
    async with AsyncClient(server.url) as peer:
        job = await peer.submit(command="x", resources={"gpu": 1}, name="async")
        assert [each.id async for each in peer.jobs(name="async")] == [job.id]
        waiting = asyncio.create_task(peer.wait("async", timeout_s=60))
        claim = await asyncio.to_thread(worker.claim)
        worker.write(claim, "one\ntwo\n")
        worker.end(claim)
        assert (await waiting).phase is Phase.DONE
        assert [line async for line in peer.logs(job, follow=True)] == ["one", "two"]
        kinds = [type(event) async for event in peer.events(job, follow=True)]
        assert (kinds[0], kinds[-1]) == (JobSubmitted, JobEnded)
        with pytest.raises(NotFoundError):
            await peer.get("nosuch")


def test_both_clients_have_the_same_methods() -> None:
    own = {"servers", "close"}
    assert public(Client) - own == public(AsyncClient) - own
    assert inspect.signature(Client.get) == inspect.signature(AsyncClient.get)
    assert Client.get.__doc__ == AsyncClient.get.__doc__


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_package_lists_what_is_public() -> None:
    assert dir(phalanx) == sorted(phalanx.__all__)
    assert {"AsyncClient", "Client", "NotFoundError", "Phase", "task"} <= set(dir(phalanx))
    assert all(getattr(phalanx, name) is not None for name in dir(phalanx))
