"""The page "A day with Phalanx": its commands in a pipe, and again on a terminal of 80 columns."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.terminal import (
    PATIENCE_S,
    SCRIPT,
    Following,
    Said,
    Screen,
    Terminal,
    until,
)
from tests.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "walkthrough.md").read_text("utf-8")
WIDTH = 80
#: The pause of the page's program in each step. Here the last steps take longer until the test lets
#: them go, so that a job does not end before the test has looked at it.
PAUSE = "time.sleep(0.02)"
HELD = "time.sleep(0.02 if step < 250 or __import__('os').path.exists('go') else 0.5)"
TRAINING = re.compile(r"train +running .* \d+%.* left")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """What the page begins with, in a folder with its program."""
    folder = tmp_path_factory.mktemp("day")
    [program] = blocks("python")
    assert PAUSE in program
    (folder / "train.py").write_text(program.replace(PAUSE, HELD))
    port = free_port()
    path = f"{Path(SCRIPT).parent}{os.pathsep}{os.environ['PATH']}"
    at = Terminal(f"http://127.0.0.1:{port}", PATH=path)
    before = Path.cwd()
    os.chdir(folder)
    try:
        words = words_of(commands()[0])
        process = at.start(*words, f"--port={port}", f"--data={folder / 'data'}")
        with Following(process) as running:
            assert running.line_with("Ctrl-C stops everything.", PATIENCE_S), running.seen
            yield at
            process.terminate()
            process.wait(PATIENCE_S)
    finally:
        os.chdir(before)


def commands() -> list[str]:
    return "".join(blocks("sh")).splitlines()


def words_of(command: str) -> list[str]:
    program, *words = shlex.split(command)
    assert program == "phalanx"
    return words


def started(at: Terminal, job: str) -> None:
    until(lambda: (at.type("job", job, "--json").json.get("progress") or {}).get("step", 0) > 20)


def typed(at: Terminal, command: str) -> Said:
    """Type a command; the list of jobs again until it shows how far the training is."""
    answers: list[Said] = []

    def is_answered() -> bool:
        answers.append(at.type(*words_of(command), COLUMNS=str(WIDTH)))
        return command != "phalanx jobs" or bool(TRAINING.search(answers[-1].out))

    until(is_answered)
    return answers[-1]


def test_the_day_works_as_written(cluster: Terminal) -> None:
    said: dict[str, Said] = {}
    printed = ""  #: by all commands
    counts: list[str] = []  #: the lines of the array, before and after the retry
    for command in commands()[1:]:
        if "urgent" in command:  # a user is never so quick
            started(cluster, "low")
        if "--name low" in command:
            Path("go").unlink()
        if "--failed" in command:
            Path("fixed").touch()
        before = said.pop(command, None)
        said[command] = typed(cluster, command)
        if "urgent" in command or command == "phalanx jobs":
            Path("go").touch()
        printed += said[command].out + said[command].err
        fails = command == "phalanx wait sweep" and before is None
        assert said[command].status == int(fails), (command, said[command])
        if "--name sweep" in command and " jobs " in command:
            counts.append(said[command].out)
        tables = said[command].out.splitlines() if "events" not in command else []
        assert max(map(len, tables), default=0) <= WIDTH, said[command].out
    jobs = said["phalanx jobs"].out
    assert re.search(r"evaluate +pending .* runs after train", jobs), jobs
    assert said["phalanx logs evaluate"].out == "evaluated\n"
    told = said["phalanx events low"].out
    assert "evicted: task worker preempted by higher-priority job default/urgent" in told
    assert told.count("saved a checkpoint") >= 4
    assert "lost " not in told, "every task has saved its work"
    begins = re.findall(r"begins after step (\d+)", said["phalanx logs low --task 0"].out)
    assert int(begins[0]) == 0 < int(begins[1])
    job = said["phalanx job low"].out
    assert "lost work    none in 1 eviction" in job
    assert "step 300 of 300 (100%)" in job
    assert "19 of 20 done, 1 failed" in counts[0]
    assert "20 of 20 done" in counts[1]
    assert re.search(r"j-\w{8}\[7\] +failed", said["phalanx job sweep"].out)
    for line in "".join(blocks("text")).splitlines():
        # Where a line is cut depends on the widths of its columns.
        whole, cut, _ = shape(line).partition("…")
        words = whole.rstrip().rpartition(" ")[0] if cut else whole
        assert words in shape(printed), f"no command prints this line of the page: {line}"


def shape(line: str) -> str:
    """The line without what differs from run to run: ids, numbers, times, and what is cut."""
    line = re.sub(r"[^ ]*…", "…", re.sub(r"j-[0-9a-z]{8}", "ID", line))
    line = re.sub(r"(\d+[hms] ?)+(?![\w])", "TIME ", re.sub(r"\d+\.\d+s", "0s", line))
    return " ".join(re.sub(r"\d+(\.\d+)?", "0", line).split())


def test_following_on_a_terminal_shows_a_bar_with_the_time_left(cluster: Terminal) -> None:
    Path("go").touch()
    words = ("submit", "--gang", "4", "--gpu", "1", "--follow", "--", "python3", "train.py")
    with Screen(cluster, *words) as screen:
        screen.until("begins after step 0")
        screen.until("█")
        screen.until("left, loss ")
        screen.until(" after ")
        assert screen.ended() == 0
