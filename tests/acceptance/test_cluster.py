"""Commands for operators: workers, queues and `phalanx top`."""

import pytest

from tests.acceptance.terminal import Server, Terminal, Worker, until


@pytest.fixture
def at(own_server: Server) -> Terminal:
    return Terminal(own_server.url)


def test_workers_are_listed_with_free_and_total_resources(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1", gpu=2, cpu=8) as worker:
        at.type("submit", "--gpu", "1", "--", "x")
        worker.claim()
        head, line = at.type("workers").out.splitlines()
        assert head.split("  ")[0] == "WORKER"
        assert line.split() == ["w-1", "active", "1", "1/2", "8/8"]
        [shown] = at.type("workers", "--json").json
        assert shown["free"] == {"gpu": 1, "cpu": 8}


def test_a_worker_is_cordoned_uncordoned_and_drained(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1") as worker:
        assert at.type("cordon", "w-1", "--reason", "new fans").status == 0
        assert "cordoned" in at.type("workers").out
        assert "new fans" in at.type("workers").out
        assert at.type("uncordon", "w-1").out == "worker w-1 uncordoned\n"
        job = at.type("submit", "--", "x").out.strip()
        worker.claim()
        delayed = at.type("drain", "w-1", "--deadline", "2h").out
        assert delayed == "worker w-1 draining; 1 task will be evicted in 2h\n"
        immediate = at.type("drain", "w-1").out
        assert immediate == f"worker w-1 draining; evicted {job}\n"


def test_an_unknown_worker_ends_with_status_3(at: Terminal) -> None:
    said = at.type("drain", "w-9")
    assert (said.status, said.out) == (3, "")
    assert "w-9" in said.err


def test_an_invalid_deadline_is_refused_and_changes_nothing(
    own_server: Server, at: Terminal
) -> None:
    with Worker(own_server.url, "w-1"):
        said = at.type("drain", "w-1", "--deadline", "soon")
        assert said.status == 2
        assert "deadline" in said.err
        assert at.type("workers", "--json").json[0]["status"] == "active"


def test_a_queue_is_created_changed_in_part_and_listed_in_its_tree(at: Terminal) -> None:
    assert at.type("queue", "set", "lab", "--weight", "3", "--quota", "gpu=16,cpu=64").status == 0
    assert at.type("queue", "set", "team", "--parent", "lab", "--limit", "gpu=4").status == 0
    changed = at.type("queue", "set", "lab", "--limit", "gpu=32", "--json").json
    assert (changed["weight"], changed["quota"]) == (3, {"gpu": 16, "cpu": 64})
    assert changed["limit"] == {"gpu": 32}
    lines = at.type("queues").out.splitlines()
    at_lab = next(number for number, line in enumerate(lines) if line.startswith("lab "))
    assert lines[at_lab + 1].startswith("  team ")
    rules = "{kind: Queue, name: lab, priority: 7, reclaimable: false, namespaces: [ml]}"
    at.type("apply", "-f", "-", "--yes", stdin=rules)
    emptied = at.type("queue", "set", "lab", "--quota", "", "--json").json
    assert (emptied["priority"], emptied["reclaimable"]) == (7, False)
    assert emptied["namespaces"] == ["ml"]
    assert emptied["quota"] == {}


def test_why_names_the_stopped_queue(own_server: Server, at: Terminal) -> None:
    at.type("queue", "set", "lab")
    assert at.type("queue", "stop", "lab").status == 0
    job = at.type("submit", "--queue", "lab", "--cpu", "1", "--name", "x", "--", "x").out.strip()
    with Worker(own_server.url, "w-1", cpu=1) as worker:
        until(lambda: "stopped" in at.type("why", "x").out)  # the next plan says it
        why = at.type("why", "x").out
        assert why.splitlines()[0] == f"{job}: pending: queue lab is stopped"
        assert at.type("queue", "delete", "lab").status == 4
        assert at.type("queue", "start", "lab").out == "queue lab started\n"
        worker.end(worker.claim())
    until(lambda: at.type("job", "x", "--json").json["phase"] == "done")
    assert at.type("queue", "delete", "lab").out == "queue lab deleted\n"


@pytest.mark.parametrize("quota", ["gpu", "=3", "gpu="])
def test_an_invalid_quota_is_refused(at: Terminal, quota: str) -> None:
    said = at.type("queue", "set", "lab", "--quota", quota)
    assert said.status == 2
    assert "like gpu=16" in said.err


def test_top_prints_workers_queues_and_jobs_once(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1", gpu=2) as worker:
        at.type("submit", "--gpu", "1", "--name", "busy", "--", "x")
        at.type("submit", "--gpu", "8", "--name", "large", "--", "x")
        worker.claim()
        said = at.type("top", "--once").out
        assert "1 of 1 worker active" in said.splitlines()[0]
        assert said.index("busy") < said.index("large")
        glance = at.type("top", "--json").json
        assert [len(glance[each]) for each in ("workers", "jobs")] == [1, 2]
