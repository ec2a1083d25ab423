"""What operators type: workers, queues, and the cluster at a glance."""

import pytest

from tests.acceptance.terminal import Server, Terminal, Worker


@pytest.fixture
def at(own_server: Server) -> Terminal:
    return Terminal(own_server.url)


def test_workers_are_shown_with_what_is_free_of_what_they_have(
    own_server: Server, at: Terminal
) -> None:
    with Worker(own_server.url, "w-1", gpu=2, cpu=8) as worker:
        at.type("submit", "--gpu", "1", "--", "x")
        worker.claim()
        head, line = at.type("workers").out.splitlines()
        assert head.split("  ")[0] == "WORKER"
        assert line.split() == ["w-1", "active", "1", "1/2", "8/8"]
        [shown] = at.type("workers", "--json").json
        assert shown["free"] == {"gpu": 1, "cpu": 8}


def test_a_worker_is_cordoned_opened_and_emptied(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1") as worker:
        assert at.type("cordon", "w-1", "--reason", "new fans").status == 0
        assert "cordoned" in at.type("workers").out
        assert "new fans" in at.type("workers").out
        assert at.type("uncordon", "w-1").out == "w-1 is open\n"
        job = at.type("submit", "--", "x").out.strip()
        worker.claim()
        waits = at.type("drain", "w-1", "--deadline", "2h").out
        assert waits == "w-1 takes nothing new; what is there (1 task) has 2h left\n"
        gone = at.type("drain", "w-1").out
        assert gone == f"w-1 is being emptied; these go elsewhere: {job}\n"


def test_a_worker_that_is_not_there_is_said_with_status_3(at: Terminal) -> None:
    said = at.type("drain", "nobody")
    assert (said.status, said.out) == (3, "")
    assert "nobody" in said.err


def test_a_deadline_that_is_none_is_refused_and_changes_nothing(
    own_server: Server, at: Terminal
) -> None:
    with Worker(own_server.url, "w-1"):
        said = at.type("drain", "w-1", "--deadline", "soon")
        assert said.status == 2
        assert "deadline" in said.err
        assert at.type("workers", "--json").json[0]["status"] == "active"


def test_a_queue_is_made_changed_in_part_and_shown_in_its_tree(at: Terminal) -> None:
    assert at.type("queue", "set", "lab", "--weight", "3", "--quota", "gpu=16,cpu=64").status == 0
    assert at.type("queue", "set", "team", "--parent", "lab", "--limit", "gpu=4").status == 0
    changed = at.type("queue", "set", "lab", "--limit", "gpu=32", "--json").json
    assert (changed["weight"], changed["quota"]) == (3, {"gpu": 16, "cpu": 64})
    assert changed["limit"] == {"gpu": 32}
    lines = at.type("queues").out.splitlines()
    at_lab = next(number for number, line in enumerate(lines) if line.startswith("lab "))
    assert lines[at_lab + 1].startswith("  team ")
    emptied = at.type("queue", "set", "lab", "--quota", "", "--json").json
    assert emptied["quota"] == {}


def test_a_queue_that_is_stopped_says_why_its_jobs_wait(own_server: Server, at: Terminal) -> None:
    at.type("queue", "set", "lab")
    assert at.type("queue", "stop", "lab").status == 0
    job = at.type("submit", "--queue", "lab", "--cpu", "1", "--name", "x", "--", "x").out.strip()
    with Worker(own_server.url, "w-1", cpu=1) as worker:
        why = ""
        while "stopped" not in why:  # the next plan says it
            why = at.type("why", "x").out
        assert why.splitlines()[0] == f"{job}: it waits: queue lab is stopped"
        assert at.type("queue", "delete", "lab").status == 4
        assert at.type("queue", "start", "lab").out == "jobs of queue lab may start\n"
        worker.end(worker.claim())
    while at.type("job", "x", "--json").json["phase"] != "done":
        pass
    assert at.type("queue", "delete", "lab").out == "queue lab is gone\n"


@pytest.mark.parametrize("quota", ["gpu", "=3", "gpu="])
def test_a_quota_that_cannot_be_read_is_refused(at: Terminal, quota: str) -> None:
    said = at.type("queue", "set", "lab", "--quota", quota)
    assert said.status == 2
    assert "like gpu=16" in said.err


def test_the_cluster_is_seen_at_a_glance(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1", gpu=2) as worker:
        at.type("submit", "--gpu", "1", "--name", "busy", "--", "x")
        at.type("submit", "--gpu", "8", "--name", "large", "--", "x")
        worker.claim()
        said = at.type("top", "--once").out
        assert "1 of 1 worker open" in said.splitlines()[0]
        assert said.index("busy") < said.index("large")
        glance = at.type("top", "--json").json
        assert [len(glance[each]) for each in ("workers", "jobs")] == [1, 2]
