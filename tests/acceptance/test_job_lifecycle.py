"""A job from its submission to its end, on the command line."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.acceptance.terminal import PATIENCE_S, Following, Screen, Server, Terminal, Worker


@pytest.fixture
def at(own_server: Server) -> Terminal:
    return Terminal(own_server.url)


def test_waiting_for_a_job_that_is_done_ends_with_status_0(
    own_server: Server, at: Terminal
) -> None:
    with Worker(own_server.url, "w-1", gpu=2) as worker:
        waiting = at.start(
            "submit", "--gang", "2", "--gpu", "1", "--name", "train", "-w", "--", "x"
        )
        for _ in range(2):
            worker.end(worker.claim())
        out, err = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0
    assert re.fullmatch(r"job done after .*\n", err)
    [job] = out.split()
    shown = at.type("job", job).out
    assert "2 tasks: x (gpu 1 each)" in shown
    assert "tasks        2 done\n" in shown
    tasks = [line.split() for line in at.type("tasks", "train").out.splitlines()]
    assert [line[:4] for line in tasks[1:]] == [
        ["0", "worker", "done", "w-1"],
        ["1", "worker", "done", "w-1"],
    ]
    assert at.type("why", "train").out == f"{job}: done: job complete\n"


def test_waiting_for_a_job_that_fails_ends_with_status_1(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1") as worker:
        waiting = at.start("submit", "--max-retries", "1", "--name", "bad", "--wait", "--", "x")
        worker.end(worker.claim(), exit_code=3)
        _, told = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 1
    # Also without a terminal.
    assert re.fullmatch(r"job failed after .*: task 0 exited with code 3 on w-1\n", told)
    story = at.type("events", "bad").out
    assert "task 0 exited with code 3 on w-1" in story
    assert story.splitlines()[-1].split("  ")[1].startswith("job failed: ")


@pytest.mark.parametrize("how", ["--wait", "--follow"])
def test_with_json_only_the_job_as_it_ended_is_on_standard_output(
    own_server: Server, at: Terminal, how: str
) -> None:
    with Worker(own_server.url, "w-1") as worker:
        waiting = at.start("submit", "--max-retries", "1", "--json", how, "--", "x")
        claim = worker.claim()
        worker.write(claim, "hello\n")
        worker.end(claim, exit_code=3)
        out, told = waiting.communicate(timeout=PATIENCE_S)
    ended = json.loads(out)
    assert (waiting.returncode, ended["phase"]) == (1, "failed")
    assert ended["cause"] == "task 0 exited with code 3 on w-1"
    assert ("hello\n" in told) == (how == "--follow")
    assert "job failed after" in told


def test_waiting_for_a_job_that_is_cancelled_ends_with_status_1(at: Terminal) -> None:
    waiting = at.start("submit", "--gpu", "1", "--name", "gone", "--wait", "--", "x")
    assert waiting.stdout is not None
    job = waiting.stdout.readline().strip()
    assert at.type("cancel", job).out == f"{job} cancelled\n"
    waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 1
    # Cancelling twice is not an error.
    assert at.type("cancel", job).status == 0


def test_waiting_at_a_terminal_shows_the_reason_and_ends_with_ctrl_c(at: Terminal) -> None:
    words = ("submit", "--gpu", "1", "--name", "patient", "--wait", "--", "x")
    with Screen(at, *words) as screen:
        screen.until("pending\x1b[0m: never fits: ")
        screen.process.send_signal(signal.SIGINT)
        screen.until("the job keeps running; stop it with `phalanx cancel patient`")
        assert screen.ended() == 130
    assert at.type("job", "patient", "--json").json["phase"] == "pending"


def test_following_at_a_terminal_shows_why_there_is_no_output_yet(
    own_server: Server, at: Terminal
) -> None:
    at.type("submit", "--cpu", "1", "--name", "spoken", "--", "x")
    with Screen(at, "logs", "-f", "spoken") as screen:
        screen.until("pending\x1b[0m: never fits: ")
        with Worker(own_server.url, "w-1", cpu=1) as worker:
            claim = worker.claim()
            worker.write(claim, "at last\n")
            screen.until("at last")
            worker.end(claim)
            assert screen.ended() == 0


RETRIED = "{name: retried, backoff: 1s, roles: {worker: {command: x}}}"


def test_following_prints_why_an_attempt_stopped_and_when_the_next_one_begins(
    own_server: Server, at: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(RETRIED)
    with Worker(own_server.url, "w-1") as worker:
        following = at.start("submit", "-f", str(file), "--follow")
        for code in (3, 3, 0):
            worker.end(worker.claim(), exit_code=code)
        out, told = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0
    assert len(out.splitlines()) == 1  # the id: events go to standard error
    lines = told.splitlines()
    assert lines.count("event: stopping all tasks: task 0 exited with code 3 on w-1") == 2
    assert [line for line in lines if re.match(r"event: all tasks .* job requeued$", line)]
    assert [line for line in lines if re.match(r"event: next attempt in [\d.]+ s", line)]
    assert lines[-1].startswith("job done after ")


def test_following_at_a_terminal_prints_why_an_attempt_stopped(
    own_server: Server, at: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(RETRIED)
    with (
        Worker(own_server.url, "w-1") as worker,
        Screen(at, "submit", "-f", str(file), "--follow") as screen,
    ):
        worker.end(worker.claim(), exit_code=3)
        screen.until("stopping all tasks: task 0 exited with code 3 on w-1")
        worker.end(worker.claim())
        assert screen.ended() == 0


def test_the_cluster_is_watched_until_ctrl_c(own_server: Server, at: Terminal) -> None:
    with Screen(at, "top", "--interval", "0.1") as screen:
        screen.until("no unfinished jobs")
        with Worker(own_server.url, "w-1", cpu=1):
            screen.until("w-1")
        screen.process.send_signal(signal.SIGINT)
        assert screen.ended() == 130


def test_the_events_of_a_job_are_followed_to_its_end(own_server: Server, at: Terminal) -> None:
    at.type("submit", "--name", "told", "--", "x")
    following = at.start("events", "told", "-f", "--json")
    assert following.stdout is not None
    first = following.stdout.readline()
    with Worker(own_server.url, "w-1") as worker:
        worker.end(worker.claim())
        out, _ = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0
    kinds = [line.split('"kind":"')[1].split('"')[0] for line in (first + out).splitlines()]
    assert kinds[0] == "JobSubmitted"
    assert kinds[-1] == "JobEnded"
    assert [each["kind"] for each in at.type("events", "told", "--json").json] == kinds


def test_all_events_are_followed_without_a_job(at: Terminal) -> None:
    with Following(at.start("events", "-f")) as heard:
        for weight in range(1, 1000):  # something happens until it listens
            at.type("queue", "set", "seen", "--weight", str(weight))
            if heard.line_with("queue seen changed"):
                break
        else:
            pytest.fail(f"it never told: {heard.seen}")


def test_events_without_a_job_need_follow(at: Terminal) -> None:
    said = at.type("events")
    assert said.status == 2
    assert "name one, or follow all events with -f" in said.err


def test_a_job_on_hold_is_pending_until_it_is_released(at: Terminal) -> None:
    job = at.type("submit", "--gpu", "1", "--name", "later", "--", "x").out.strip()
    assert at.type("hold", "later").out == f"{job} on hold\n"
    said = at.type("why", "later").out.splitlines()
    assert said == [f"{job}: pending: on hold until it is released", "remedy: release the job"]
    assert at.type("release", "later", "--json").json[0].get("on_hold", False) is False
    assert "on hold" not in at.type("why", "later").out


def test_a_running_job_is_requeued(own_server: Server, at: Terminal) -> None:
    job = at.type("submit", "--name", "moved", "--", "x").out.strip()
    with Worker(own_server.url, "w-1") as worker:
        worker.claim()
        said = at.type("requeue", "moved")
    assert said.out == f"{job} stopping; it is requeued when all tasks have stopped\n"


def test_the_priority_of_a_job_is_changed(at: Terminal) -> None:
    at.type("submit", "--gpu", "1", "--name", "first", "--", "x")
    assert at.type("priority", "first", "--json", "--", "-5").json[0]["priority"] == -5


def test_retry_submits_an_ended_job_again(at: Terminal) -> None:
    old = at.type("submit", "--gpu", "1", "--name", "over", "--", "x").out.strip()
    said = at.type("retry", "over")
    assert said.status == 4
    assert said.err == (
        f"phalanx: job {old} is pending; only a job that has ended can be retried; to"
        " stop and requeue it, use requeue\n"
    )
    at.type("cancel", "over")
    new = at.type("retry", "over").out.strip()
    assert new != old
    assert at.type("job", "over", "--json").json["id"] == new


def test_a_misspelt_name_among_several_changes_no_job(at: Terminal) -> None:
    jobs = [at.type("submit", "--gpu", "1", "--", "x").out.strip() for _ in range(2)]
    said = at.type("cancel", *jobs, "misspelt")
    assert said.status == 3
    assert said.err.endswith("; no job was changed\n")
    assert len(at.type("jobs", "--phase", "pending", "--json").json) == 2
    assert at.type("cancel", *jobs).out.split()[::2] == jobs


def test_a_job_that_refuses_a_change_does_not_stop_the_others(at: Terminal) -> None:
    over, other = (at.type("submit", "--gpu", "1", "--", "x").out.strip() for _ in range(2))
    at.type("cancel", over)
    said = at.type("hold", over, other)
    assert said.status == 4
    assert said.out == f"{other} on hold\n"
    assert f"job {over} is cancelled" in said.err
