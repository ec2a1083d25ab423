"""Commands of every day: wait, status, cancel by filter, whoami, login, worker remove, --quiet."""

import stat
from pathlib import Path

import pytest
from typer.testing import _NamedTextIOWrapper

from phalanx.cli.status import servers_text
from phalanx.wire.servers import LeaderView, ServersView, StandbyView
from tests.acceptance.terminal import Screen, Server, Terminal, Worker


@pytest.fixture
def at(own_server: Server) -> Terminal:
    return Terminal(own_server.url)


def submit(at: Terminal, *words: str) -> str:
    said = at.type("submit", *words, "--", "x")
    assert said.status == 0, said.err
    return said.out.strip()


def test_wait_ends_with_the_worst_of_several_jobs(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1", gpu=2) as worker:
        good = submit(at, "--name", "good", "--gpu", "1")
        worker.end(worker.claim())
        assert at.type("wait", "good").status == 0
        bad = submit(at, "--gpu", "1", "--max-retries", "1")
        worker.end(worker.claim(), exit_code=3)
        said = at.type("wait", good, bad, "--json")
        assert (said.status, [job["phase"] for job in said.json]) == (1, ["done", "failed"])
        assert said.err.splitlines()[1].startswith(f"job {bad} failed after ")


def test_wait_gives_up_after_its_timeout(at: Terminal) -> None:
    job = submit(at, "--name", "slow")
    said = at.type("wait", "slow", "--timeout", "0.1s")
    assert (said.status, said.err) == (6, f"phalanx: job {job} is still pending after 0.1 s\n")
    wrong = at.type("wait", "slow", "--timeout", "soon")
    assert (wrong.status, wrong.err.split()[:2]) == (2, ["phalanx:", "--timeout"])


def test_dependencies_are_given_by_name(at: Terminal) -> None:
    train = submit(at, "--name", "train")
    submit(at, "--name", "evaluate", "--after", "train")
    submit(at, "--name", "report", "--afterany", "train", "--afternotok", "default/evaluate")
    submit(at, "--name", "publish", "--after", "train, evaluate", "--after", "report")
    assert "runs after train, evaluate, report, " in at.type("why", "publish").out
    assert "runs after train, " in at.type("why", "evaluate").out
    assert "runs after train, " in at.type("job", "evaluate").out
    assert "runs after train, " in at.type("jobs").out
    assert at.type("cancel", train).status == 0
    assert "failed: dependency train " in at.type("job", "evaluate").out
    phases = {job["name"]: job["phase"] for job in at.type("jobs", "--json").json}
    assert (phases["evaluate"], phases["report"]) == ("failed", "pending")


def test_status_shows_the_cluster_in_a_few_lines(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1", gpu=2) as worker:
        submit(at, "--gpu", "1")
        worker.claim()
        submit(at, "--gpu", "2")
        lines = at.type("status").out.splitlines()
        assert [line.split(maxsplit=1) for line in lines[1:]] == [
            ["workers", "1 active"],
            ["gpu", "1 of 2 in use"],
            ["jobs", "1 running, 1 pending"],
        ]
        assert at.type("status", "--json").json["free"] == {"gpu": 1}


def test_queues_show_usage_shares_and_jobs(own_server: Server, at: Terminal) -> None:
    assert at.type("queue", "set", "lab", "--quota", "gpu=1").status == 0
    assert at.type("queue", "set", "vision", "--parent", "lab").status == 0
    with Worker(own_server.url, "w-1", gpu=4) as worker:
        submit(at, "--queue", "vision", "--gang", "2", "--gpu", "1")
        worker.claim()
        submit(at, "--gpu", "4")
        headings, *rows = at.type("queues", COLUMNS="80").out.splitlines()
        assert headings.split("  ")[0] == "QUEUE"
        assert {"RUNNING", "PENDING", "USED", "BORROWED", "QUOTA"} <= set(headings.split())
        assert max(map(len, [headings, *rows])) <= 80
        usage = {each["name"]: each["usage"] for each in at.type("queues", "--json").json}
        assert (usage["lab"]["running"], usage["default"]["pending"]) == (1, 1)
        assert usage["lab"]["used"] == usage["vision"]["used"] == {"gpu": 2}
        share = usage["vision"]["fair_share"]["gpu"]
        assert usage["vision"]["borrowed"].get("gpu", 0) == max(0, 2 - share)


def test_jobs_are_cancelled_by_queue_name_or_all(at: Terminal) -> None:
    at.type("queue", "set", "lab")
    one, two = submit(at, "--queue", "lab"), submit(at, "--name", "two")
    three = submit(at)
    assert at.type("cancel", "--queue", "lab", "--yes").out == f"{one} cancelled\n"
    assert at.type("cancel", "--name", "two", "-y").out == f"{two} cancelled\n"
    assert at.type("cancel", "--all", "--yes").out == f"{three} cancelled\n"
    assert at.type("cancel", "--all", "--yes").out == ""


def test_a_misspelt_queue_is_named(at: Terminal) -> None:
    for command in (("jobs",), ("jobs", "--json"), ("cancel", "--yes")):
        ended = at.type(*command, "--queue", "lbb")
        assert (ended.status, ended.err) == (3, "phalanx: there is no queue lbb\n")
    warned = at.type("queue", "set", "lab", "--quota", "gpus=2").err
    assert warned == "warning: no worker has gpus; did you mean gpu?\n"


def test_a_name_with_a_slash_is_refused_by_its_argument(at: Terminal) -> None:
    cure = "for a queue pretrain below ml, write `phalanx queue set pretrain --parent ml`"
    ended = at.type("queue", "set", "ml/pretrain", "--weight", "3")
    assert (ended.status, ended.err) == (2, f"phalanx: QUEUE is ml/pretrain; {cure}\n")
    for command in ("queue delete", "queue stop", "queue start", "cordon", "worker remove"):
        ended = at.type(*command.split(), "ml/pretrain")
        kind = "queue" if "queue" in command else "worker"
        problem = f"{kind} is 'ml/pretrain'; a name is not empty and has no '/'"
        assert (ended.status, ended.err) == (2, f"phalanx: {problem}\n")


def test_the_limit_of_an_array_is_named_by_its_option(at: Terminal) -> None:
    refused = at.type("submit", "--array", "0-19%0", "--", "true").err
    assert refused.startswith('phalanx: --array is "0-19%0"; after % comes how many elements')
    refused = at.type("submit", "--array", "0-19", "--parallel", "20000", "--", "true").err
    assert refused.startswith("phalanx: --parallel is 20000;")


def test_status_names_the_standbys_and_for_how_long_one_was_not_heard() -> None:
    leader = LeaderView("srv-1", "http://10.0.0.1:8080", 3)
    heard = StandbyView("srv-2", "http://10.0.0.2:8080", None)
    silent = StandbyView("srv-3", "http://10.0.0.3:8080", 12)
    given = ("http://10.0.0.2:8080",)
    assert servers_text(ServersView(leader, ()), given) == "http://10.0.0.1:8080"
    assert servers_text(ServersView(leader, (heard, silent)), given).splitlines() == [
        "http://10.0.0.1:8080 leader",
        "http://10.0.0.2:8080 standby",
        "http://10.0.0.3:8080 standby, not heard for 12 s",
    ]
    assert servers_text(ServersView(None, (heard,)), given) == "http://10.0.0.2:8080"


EMPTY_LISTS = {
    "jobs --namespace empty": "no jobs match",
    "workers": "no workers; start one with `phalanx worker`",
    "crons": "no crons; create one by submitting a job that has a name and a schedule",
    "token list": "no tokens; create one with `phalanx token create NAME`",
    "secret list": "no secrets; set one with `phalanx secret set NAME KEY=VALUE`",
    "policy list": "no policies: the built-in rules hold (namespaces of tokens and of queues)",
    "audit --by nobody": "no records match",
}


def test_a_list_with_nothing_in_it_says_so_on_a_terminal_only(
    at: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in EMPTY_LISTS:
        assert at.type(*command.split()) == (0, "", ""), command
        assert at.type(*command.split(), "--json").json == ([] if command != "policy list" else {})
    monkeypatch.setattr(_NamedTextIOWrapper, "isatty", lambda stream: stream.name == "<stderr>")
    for command, sentence in EMPTY_LISTS.items():
        assert at.type(*command.split(), COLUMNS="100") == (0, "", sentence + "\n")


def test_a_plan_says_once_that_a_job_would_never_start(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1", gpu=2):
        planned = at.type("plan", "--gang", "3", "--gpu", "1", "--", "x")
    why = "the gang needs 3 GPUs, at most 2 fit on the empty cluster"
    assert planned.out.startswith(f"the job would never start: {why}\n")
    assert planned.err == ""


def test_an_array_is_one_job_and_has_no_tasks(at: Terminal) -> None:
    words = ("submit", "--name", "sweep", "--array", "0-19", "--", "x", "{index}")
    job = at.type(*words).out.strip()
    assert at.type("status", "--json").json["pending"] == 1
    for command in ("tasks", "progress"):
        ended = at.type(command, "sweep")
        assert (ended.status, ended.out) == (4, "")
        assert "list its elements with `phalanx jobs sweep`" in ended.err
    assert at.type("job", "sweep").out.endswith("1 task: x '{index}'\n")
    assert "1 task: x 7\n" in at.type("job", "sweep[7]").out
    some = at.type("cancel", "sweep[3-5]").out
    assert some == f"{job}[3-5] cancelled; the array has 0 of 20 done, 3 never ran, 17 pending\n"
    wrong = at.type("cancel", "sweep[5-3]")
    assert wrong.err == "phalanx: sweep[5-3] has the range 5-3; write the lower index first\n"
    assert "like sweep[0]" in at.type("logs", "sweep").err


def test_an_ended_job_is_not_on_hold_and_its_tasks_did_not_fail(at: Terminal) -> None:
    job = submit(at, "--gang", "2")
    at.type("hold", job)
    assert "hold  " in at.type("job", job).out
    at.type("cancel", job)
    fields = dict(line.split(maxsplit=1) for line in at.type("job", job).out.splitlines()[:7])
    assert (fields["phase"], fields["tasks"]) == ("cancelled by local", "2 cancelled")
    assert "hold" not in fields


def test_lists_are_whole_in_a_pipe(at: Terminal) -> None:
    submit(at, "--array", "0-39")
    array = at.type("jobs", "--json").json[0]["id"]
    assert len(at.type("jobs", array).out.splitlines()) == 41
    assert len(at.type("jobs", array, "--json").json) == 40
    assert len(at.type("jobs", array, "--json", "-n", "5").json) == 5


def test_cancelling_many_jobs_is_confirmed(at: Terminal) -> None:
    job = submit(at, "--name", "kept")
    piped = at.type("cancel", "--all")
    assert (piped.status, "pass --yes" in piped.err) == (2, True)
    assert at.type("cancel").status == at.type("cancel", job, "--all").status == 2
    with Screen(at, "cancel", "--all") as screen:
        screen.until(f"Cancel 1 job: {job} (kept)? [y/N]:")
        screen.press("n\n")
        screen.until("no job was cancelled")
    assert at.type("job", job, "--json").json["phase"] == "pending"


def test_a_worker_is_removed(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-9", gpu=1):
        assert at.type("worker", "remove", "w-9").out == "worker w-9 removed\n"
    assert at.type("workers", "--json").json == []
    assert at.type("worker", "remove", "w-9").status == 3


def test_quiet_prints_only_results_and_errors(own_server: Server, at: Terminal) -> None:
    with Worker(own_server.url, "w-1", gpu=1) as worker:
        never = at.type("submit", "--quiet", "--gpu", "5", "--", "x")
        assert (never.status, never.err) == (0, "")
        assert at.type("submit", "--gpu", "5", "--", "x").err != ""
        job = submit(at, "--gpu", "1")
        worker.end(worker.claim())
        waited = at.type("wait", "-q", job)
        assert (waited.status, waited.out, waited.err) == (0, "", "")


def test_a_token_for_one_namespace_needs_to_name_none(at: Terminal) -> None:
    token = at.type("token", "create", "eva", "--namespace", "ml").out.strip()
    at.variables |= {"PHALANX_TOKEN": token}
    try:
        own = at.type("whoami", "--json").json
        assert (own["name"], own["namespaces"], own["namespace"]) == ("eva", ["ml"], "ml")
        assert submit(at, "--name", "own")
        cron = "name: nightly\nschedule: {cron: 0 2 * * *}\nroles: {w: {command: x}}\n"
        assert at.type("submit", "-f", "-", stdin=cron).out == "ml/nightly\n"
        assert at.type("cron", "pause", "nightly").out.startswith("cron ml/nightly paused")
        assert at.type("cron", "delete", "nightly").status == 0
    finally:
        del at.variables["PHALANX_TOKEN"]
        at.type("token", "revoke", "eva")


def test_login_stores_the_server_the_token_and_a_namespace_for_the_user_alone(
    own_server: Server, tmp_path: Path
) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path), "PHALANX_SERVER": ""}
    at = Terminal("")
    said = at.type("login", own_server.url, "--namespace", "lab", **home)
    file = tmp_path / "phalanx" / "client.toml"
    assert (said.status, stat.S_IMODE(file.stat().st_mode)) == (0, 0o600)
    job = at.type("submit", "--json", "--", "x", **home).json
    assert job["namespace"] == "lab"
    own = at.type("submit", "-f", "-", "--json", stdin="roles: {w: {command: x}}", **home).json
    assert own["namespace"] == "lab"
    assert "default namespace  lab" in at.type("whoami", **home).out
    assert at.type("logout", **home).out == f"Logged out. The settings in {file} were removed.\n"
    assert at.type("logout", **home).out == "You are not logged in.\n"


def test_help_explains_topics_and_commands(at: Terminal) -> None:
    topics = at.type("help").out
    for topic in ("exits", "names", "phases", "scripts", "slurm", "variables"):
        assert f"\n  {topic} " in topics
        text = at.type("help", topic).out
        assert text
        assert max(map(len, text.splitlines())) <= 80
    assert at.type("help", "queue", "set").out.startswith("Usage: phalanx queue set [OPTIONS]")
    assert at.type("help", "nosuch").status == 2
