"""`phalanx plan` and `phalanx why`: scenarios, and jobs that are planned but not submitted."""

import json
import re
from pathlib import Path

from tests.acceptance.terminal import Server, Terminal, Worker

SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"

QUESTION = """
name: %s
nodes: [{name: n1, resources: {gpu: 2}}]
running: [{gang: low, started_s_ago: 3600, tasks: [{name: l0, node: n1, resources: {gpu: 2}}]}]
pending:
- gang: high
  priority: 9
  tasks: [{name: h0, resources: {gpu: 1}}, {name: h1, resources: {gpu: 1}}]
- {gang: wide, tasks: [{name: w0, resources: {gpu: 3}}]}
expect: {placed: {high: %d}, evicted_any_of: [[l0]], reasons: {wide: NeverFits}}
"""

#: A time as `phalanx why` prints it.
MINUTE = r"\d{4}-\d\d-\d\dT\d\d:\d\dZ"

#: Scenarios need no server.
ALONE = Terminal("http://127.0.0.1:9")


def written(folder: Path, name: str, placed: int) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(QUESTION % (name, placed))
    return str(path)


def test_every_rule_of_the_planner_holds_in_our_own_scenarios() -> None:
    files = sorted(map(str, SCENARIOS.glob("*.yaml")))
    said = ALONE.type("plan", "--check", *files)
    *lines, last = said.out.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert last == f"{len(lines)} passed, 0 failed"
    assert said.status == 0
    assert len(lines) > 100


def test_a_check_that_fails_says_what_differs(tmp_path: Path) -> None:
    good, bad = written(tmp_path, "good", 2), written(tmp_path, "bad", 1)
    said = ALONE.type("plan", "--check", good, bad)
    assert said.status == 1
    assert said.out.splitlines() == [
        "ok good",
        "FAIL bad: placed: expected 1 of high, got 2 of high",
        "1 passed, 1 failed",
    ]


def test_a_file_that_cannot_be_read_fails_and_the_others_are_checked(tmp_path: Path) -> None:
    odd = tmp_path / "odd.yaml"
    odd.write_text("name: odd\nnodes: [{name: n1, colour: red}]\n")
    said = ALONE.type("plan", "--check", str(odd), "/nowhere.yaml", written(tmp_path, "good", 2))
    assert said.status == 1
    assert f"FAIL {odd}: nodes[0].colour is not a known field; remove it" in said.out
    assert "FAIL /nowhere.yaml: /nowhere.yaml: No such file or directory" in said.out
    assert said.out.endswith("ok good\n1 passed, 2 failed\n")


def test_a_scenario_is_printed_in_words(tmp_path: Path) -> None:
    said = ALONE.type("plan", written(tmp_path, "a-case", 2))
    assert said.status == 0
    assert said.out.splitlines() == [
        "a-case:",
        "  evict l0 of low for high, losing 2.0 GPU-hours",
        "    then start high: h0, h1 on n1",
        "  wide is pending: never fits: each task needs 3 GPUs, the largest node has 2",
    ]


def test_a_scenario_is_printed_as_json(tmp_path: Path) -> None:
    found = ALONE.type("plan", "--json", written(tmp_path, "a-case", 2)).json
    [evict] = found["decisions"]
    assert (evict["decision"], evict["victims"]) == ("Evict", {"low": ["l0"]})
    assert found["placed"] == {"high": 2}
    assert found["placement"] == {"h0": "n1", "h1": "n1"}
    assert found["reasons"]["wide"]["type"] == "NeverFits"


def test_a_plan_without_a_job_or_a_scenario_is_refused(tmp_path: Path) -> None:
    assert ALONE.type("plan").status == 2
    said = ALONE.type("plan", "-f", "job.yaml", written(tmp_path, "a-case", 2))
    assert said.status == 2
    assert "give one of: a job with -f, a command after --, or scenarios" in said.err
    wrong = ALONE.type("plan", str(tmp_path))
    assert wrong.status == 2
    assert "Is a directory" in wrong.err


def job(folder: Path, size: int, **fields: object) -> str:
    path = folder / f"job-{size}.json"
    role = {"command": "true", "replicas": size, "resources": {"gpu": 1}}
    path.write_text(json.dumps({"roles": {"worker": role}, **fields}))
    return str(path)


def test_a_job_is_planned_on_the_cluster_and_not_stored(own_server: Server, tmp_path: Path) -> None:
    terminal = Terminal(own_server.url)
    with Worker(own_server.url, "w-1", gpu=2) as worker:
        said = terminal.type("plan", "-f", job(tmp_path, 2))
        assert said.out == "the job would start now: 2 tasks on w-1\n"
        never = terminal.type("plan", "-f", job(tmp_path, 3))
        assert never.out.startswith("the job would never start: ")
        assert terminal.type("jobs", "--json").json == []

        terminal.type("submit", "--name", "busy", "--gpu", "1", "--", "true")
        worker.claim()
        waits = terminal.type("plan", "-f", job(tmp_path, 2))
        assert waits.out.splitlines() == [
            "the job would be pending: 1 of 2 tasks fit (short of GPUs)",
            "alternative: with 1 of 2 tasks, the job would start now",
            waits.out.splitlines()[2],
        ]
        assert waits.out.splitlines()[2].startswith(
            "alternative: with priority 1, the job would evict"
        )
        evicts = terminal.type("plan", "-f", job(tmp_path, 2, priority=3))
        assert evicts.out.startswith("the job would evict default/busy")
        assert evicts.out.endswith("and start when the evicted tasks have stopped\n")


def test_a_command_is_planned_with_the_options_of_submit(own_server: Server) -> None:
    terminal = Terminal(own_server.url)
    before = terminal.type("jobs", "--json").json
    with Worker(own_server.url, "w-1", gpu=2):
        said = terminal.type("plan", "--gang", "2", "--gpu", "1", "--", "python", "train.py")
        assert said.out == "the job would start now: 2 tasks on w-1\n"
        never = terminal.type("plan", "--gpu", "3", "--json", "--", "true").json
        assert never["reason"]["type"] == "NeverFits"
    assert terminal.type("jobs", "--json").json == before
    wrong = terminal.type("plan", "--gpu", "many", "--", "true")
    assert (wrong.status, wrong.err.split()[:2]) == (2, ["phalanx:", "--gpu"])
    file = terminal.type(
        "plan", "-f", "-", "--gpu", "3", "--json", stdin="roles: {w: {command: x}}"
    )
    assert file.json["reason"]["type"] == "NeverFits"
    assert "--gang is for jobs" in ALONE.type("plan", "--gang=2", "scenario.yaml").err


def test_the_plan_of_a_cron_says_when_its_next_run_is_due(
    own_server: Server, tmp_path: Path
) -> None:
    terminal = Terminal(own_server.url)
    cron = job(tmp_path, 2, name="nightly", schedule={"cron": "30 2 * * *", "timezone": "UTC"})
    with Worker(own_server.url, "w-1", gpu=2):
        said, found = (terminal.type("plan", "-f", cron, *more) for more in ([], ["--json"]))
    due = found.json["due_at"][:16].replace("T", " ")
    assert due.endswith(" 02:30")
    assert not found.json["starts"]
    assert said.out == (
        f"the next run is due at {due} UTC; if the cluster stayed as it is now, the job would"
        " start at once: 2 tasks on w-1\n"
    )


def test_an_invalid_job_is_refused_with_file_and_path(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("roles: {worker: {command: train, replicas: 2, min: 3}}\n")
    said = terminal.type("plan", "-f", str(path))
    assert said.status == 2
    assert said.err.startswith(f"phalanx: {path}: roles.worker.min is 3 but replicas is 2")


def test_a_manifest_is_planned_without_its_image(own_server: Server, tmp_path: Path) -> None:
    terminal, path = Terminal(own_server.url), tmp_path / "pod.yaml"
    image = f"127.0.0.1:1/busybox@sha256:{64 * '0'}"  # no registry is asked for the digest of a tag
    path.write_text(
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\n"
        "spec: {minAvailable: 1, tasks: [{name: w, replicas: 1, template: {spec: {containers:"
        f" [{{name: c, image: '{image}', command: [sleep, '1']}}]}}}}}}]}}\n"
    )
    with Worker(own_server.url, "w-1", gpu=2):
        assert terminal.type("plan", "-f", str(path)).out.startswith("the job would never start: ")
        said = terminal.type("plan", "-f", str(path), "--ignore-image")
        assert said.out == "the job would start now: 1 task on w-1\n"


def test_why_prints_a_remedy_and_alternatives(own_server: Server) -> None:
    terminal = Terminal(own_server.url)
    with Worker(own_server.url, "w-1", gpu=2) as worker:
        terminal.type("submit", "--name", "busy", "--gpu", "1", "--", "true")
        worker.claim()
        terminal.type("submit", "--name", "pair", "--gang", "2", "--gpu", "1", "--", "true")
        said = terminal.type("why", "pair").out.splitlines()
    assert said[0].endswith(": pending: 1 of 2 tasks fit (short of GPUs)")
    assert said[1] == "remedy: wait for GPUs to become free, or add workers"
    assert said[2] == "alternative: with 1 of 2 tasks, the job would start now"
    assert said[3].startswith("alternative: with priority 1, the job would evict default/busy")
    assert re.fullmatch(rf"order: due {MINUTE}; queue default uses 50% of its share", said[4])
    overdue = f"order: before all queues from {MINUTE} on \\(max_wait\\)"
    assert re.fullmatch(overdue, said[5])
    assert len(said) == 6


def test_why_says_by_how_much_a_queue_exceeds_its_share(own_server: Server) -> None:
    terminal = Terminal(own_server.url)
    terminal.type("queue", "set", "lab", "--quota", "gpu=1", "--weight", "0")
    terminal.type("queue", "set", "guest", "--weight", "0")
    with Worker(own_server.url, "w-1", gpu=4) as worker:
        terminal.type("submit", "--queue", "lab", "--gang", "3", "--gpu", "1", "--", "true")
        for _ in range(3):
            worker.claim()
        terminal.type("submit", "--gang", "4", "--gpu", "1", "--", "true")
        for queue in ("lab", "guest"):
            words = ("--name", f"in-{queue}", "--queue", queue, "--gang", "2", "--gpu", "1")
            terminal.type("submit", *words, "--", "true")
        lab, guest = (terminal.type("why", f"in-{queue}").out for queue in ("lab", "guest"))
    assert "queue lab uses 300% of its share, which counts as 100%\n" in lab
    deserves = "deserves nothing of a resource that it uses or needs, which counts as 100%"
    assert f"queue guest {deserves}\n" in guest


def test_a_job_file_that_is_planned_as_a_scenario_is_refused_with_the_cure(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text("roles: {worker: {command: train}}\n")
    said = Terminal("").type("plan", str(file))
    assert said.status == 2
    assert f"is a job, not a scenario; plan it with `phalanx plan -f {file}`" in said.err
