"""`phalanx submit`: from a command or a file, and how mistakes are refused."""

import re
from pathlib import Path

from tests.acceptance.terminal import Terminal

ID = re.compile(r"j-[0-9a-z]{8}\n")


def test_a_command_is_submitted_and_only_its_id_is_printed(terminal: Terminal) -> None:
    said = terminal.type("submit", "--gang", "4", "--gpu", "1", "--", "python", "train.py")
    assert said.status == 0
    assert ID.fullmatch(said.out)
    assert said.err == ""
    job = terminal.type("job", said.out.strip(), "--json").json
    assert job["size"] == 4
    role = job["spec"]["roles"]["worker"]
    assert role["command"] == ["python", "train.py"]
    assert role["resources"] == {"gpu": 1}
    assert role["workdir"] == str(Path.cwd())


def test_every_option_sets_its_field(terminal: Terminal) -> None:
    said = terminal.type(
        *("submit", "--name", "full", "--namespace", "lab", "--priority", "7", "--cpu", "500m"),
        *("--memory", "1Gi", "--time-limit", "90m", "--checkpoint", "all", "--max-retries", "5"),
        *("--env", "A=b=c", "--workdir", "/srv", "--on-partial-completion", "fail", "--json"),
        *("--", "x"),
    )
    job = terminal.type("job", said.json["id"], "--json").json
    assert (job["name"], job["namespace"], job["priority"]) == ("full", "lab", 7)
    spec = job["spec"]
    assert (spec["time_limit"], spec["checkpoint"], spec["max_retries"]) == ("90m", "all", 5)
    assert spec["on_partial_completion"] == "fail"
    role = spec["roles"]["worker"]
    assert role["resources"] == {"cpu": "500m", "memory": "1Gi"}
    assert (role["env"], role["workdir"]) == ({"A": "b=c"}, "/srv")
    # Jobs of lower priority in the same queue would be warned about it.
    assert terminal.type("cancel", said.json["id"]).status == 0


def test_a_file_with_several_jobs_is_submitted_from_standard_input(terminal: Terminal) -> None:
    text = "roles: {a: {command: one}}\n---\nroles: {b: {command: two}}\n"
    said = terminal.type("submit", "-f", "-", stdin=text)
    assert said.status == 0
    assert len(said.out.split()) == 2


def test_a_problem_in_a_file_is_named_by_file_document_and_path(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("name: kept\nroles: {a: {command: one}}\n---\nroles: {b: {min: 2}}\n")
    said = terminal.type("submit", "-f", str(file))
    assert said.status == 2
    assert said.out == "", "nothing of the file is kept"
    assert f"phalanx: {file}, document 2: roles.b.command is missing" in said.err


def test_a_missing_file_is_named(terminal: Terminal) -> None:
    said = terminal.type("submit", "-f", "/nowhere.yaml")
    assert (said.status, said.out) == (2, "")
    assert said.err == "phalanx: /nowhere.yaml: No such file or directory\n"


def test_a_submission_without_a_file_or_a_command_is_refused_with_a_cure(
    terminal: Terminal,
) -> None:
    said = terminal.type("submit", "--gang", "4")
    assert said.status == 2
    assert "pass a file with -f, a script, or a command after --" in said.err


def test_options_beside_a_file_replace_its_fields(terminal: Terminal) -> None:
    text = "priority: 1\nroles: {w: {command: x, replicas: 4, resources: {gpu: 1}}}\n"
    options = ("--gang", "2", "--cpu", "1", "--time-limit", "1h", "--priority", "7")
    said = terminal.type("submit", "-f", "-", *options, "--json", stdin=text)
    job = terminal.type("job", said.json["id"], "--json").json
    assert (job["size"], job["priority"], job["spec"]["time_limit"]) == (2, 7, "1h")
    assert job["spec"]["roles"]["w"]["resources"] == {"gpu": 1, "cpu": 1}
    two = "roles: {a: {command: x}, b: {command: y}}"
    said = terminal.type("submit", "-f", "-", "--gang", "2", stdin=two)
    assert (said.status, said.out) == (2, "")
    cannot = "standard input: gang cannot be overridden: the job has the roles a, b; edit the file"
    assert said.err == f"phalanx: {cannot}\n"


def test_the_same_key_returns_the_same_job(terminal: Terminal) -> None:
    first = terminal.type("submit", "--key", "nightly-7", "--", "x")
    again = terminal.type("submit", "--key", "nightly-7", "--", "x")
    assert first.out == again.out


def test_an_invalid_field_is_refused_and_nothing_is_stored(terminal: Terminal) -> None:
    said = terminal.type("submit", "--name", "bad", "--gpu", "1.5", "--", "x")
    assert (said.status, said.out) == (2, "")
    assert "phalanx: --gpu is" in said.err
    said = terminal.type("submit", "--time-limit", "soon", "--memory", "lots", "--", "x")
    assert "phalanx: --time-limit is" in said.err
    assert "phalanx: --memory is" in said.err
    assert terminal.type("jobs", "--name", "bad", "--json").json == []


def test_a_warning_about_many_jobs_of_a_file_is_printed_once(terminal: Terminal) -> None:
    job = "roles: {r: {command: x, env: {DATA: 'https://s3.example.com/%d'}}}\n"
    said = terminal.type("submit", "-f", "-", stdin="---\n".join(job % n for n in range(20)))
    assert said.status == 0, said
    assert len(said.out.split()) == 20
    assert said.err.count("add it to external_services (20 jobs)") == 1
    assert said.err.count("external_services") == 1


def test_memory_without_a_unit_is_refused(terminal: Terminal) -> None:
    said = terminal.type("submit", "--memory", "32", "--", "x")
    assert (said.status, said.err) == (
        2,
        "phalanx: --memory 32 is 32 bytes; write a unit, like 32Gi\n",
    )
