"""`phalanx crons` and `phalanx cron`, with the commands of docs/how-to/cron.md."""

from pathlib import Path

from tests.acceptance.pages import blocks, commands
from tests.acceptance.terminal import Terminal


def test_the_page_works_as_written(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    [job] = blocks("cron", "yaml")
    file.write_text(job)
    said = {}
    for words in commands("cron"):
        typed = [str(file) if word == file.name else word for word in words]
        said[" ".join(words)] = answer = terminal.type(*typed)
        assert answer.status == 0, answer.err
    assert said["submit -f nightly.yaml"].out == "default/nightly\n"
    head, line = said["crons"].out.splitlines()
    assert head.split()[0] == "CRON"
    assert line.startswith("nightly")
    assert "0 2 * * *" in line
    assert "0 2 * * * (Europe/Zurich)" in said["cron show nightly"].out
    run = said["cron run-now nightly"].out.strip()
    assert terminal.type("job", run, "--json").json["name"].startswith("nightly-20")
    assert said["cron pause nightly"].out == "cron nightly paused\n"
    assert said["cron resume nightly"].out.startswith("cron nightly resumed; next run in ")
    assert said["cron delete nightly"].out == "cron nightly deleted\n"
    assert terminal.type("crons", "--json").json == []


def test_an_unknown_cron_is_named(terminal: Terminal) -> None:
    said = terminal.type("cron", "pause", "lab/nothing")
    assert said.status != 0
    assert "there is no cron lab/nothing" in said.err


def test_the_events_of_a_run_name_its_cron(terminal: Terminal) -> None:
    text = "{name: hourly, schedule: {cron: '0 0 29 2 *'}, roles: {a: {command: x}}}"
    made = terminal.type("submit", "-f", "-", "--json", stdin=text).json
    assert (made["name"], made["timezone"]) == ("hourly", "UTC")
    run = terminal.type("cron", "run-now", "hourly").out.strip()
    assert "submitted by cron default/hourly" in terminal.type("events", run).out
