"""The output of `make demo`, and of the story of the parts in virtual time."""

import re
import subprocess
import sys
from pathlib import Path

from docs import demo as recording

from tests.acceptance.terminal import environment

ROOT = Path(__file__).parents[2]
#: The course of the demo, in this order.
ESSENTIAL = (
    "all 4 workers ready, starting",
    "step 20 of 60",
    "$ kill -9",
    "was killed by SIGKILL",
    "stopping all tasks",
    "bytes",
    "job requeued",
    "attempt 2: reserved 4 tasks",
    "resuming after step",
    "finished 60 steps, sum 153120 (correct)",
    "ranks were running again",
    "Job completed in",
    "The demo cluster has been shut down.",
)


def run(script: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603
        [sys.executable, str(ROOT / script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment(TMPDIR=str(folder), **variables),
        timeout=120,
    )


def kinds(transcript: str) -> set[str]:
    """The lines without ids, numbers, plurals and order, which differ from run to run."""
    nameless = re.sub(r"\bj-[0-9a-z]{8}\b", "JOB", transcript)
    singular = re.sub(r"(\d+ [\w-]+?)s?(?![\w-])", r"\1", nameless)
    return {re.sub(r"\d+", "0", line).strip() for line in singular.splitlines()}


def test_the_demo_prints_what_was_recorded(tmp_path: Path) -> None:
    recorded = recording.transcript(recording.PAGE.read_text("utf-8"))
    # The steps after the one at which a rank is killed take long enough on a busy machine.
    demo = run("examples/demo.py", tmp_path, STEP_S="0.15")
    assert (demo.stderr, demo.returncode) == ("", 0), demo.stdout
    for transcript in (demo.stdout, recorded):
        at = -1
        for words in ESSENTIAL:
            at = transcript.find(words, at + 1)
            assert at >= 0, f"{words!r} is missing, or comes too early: {transcript}"
    assert kinds(demo.stdout) == kinds(recorded), "run `make recording`"
    assert list(tmp_path.iterdir()) == [], "the demo leaves files behind"
    assert not processes_in(tmp_path)


def processes_in(folder: Path) -> list[str]:
    """The commands of processes that name this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_make_demo_is_the_demo() -> None:
    recipe = re.search(r"^demo:.*\n\t(.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe
    assert recipe[1] == "$(BIN)/python examples/demo.py"


def test_the_story_of_the_parts_is_told_in_virtual_time(tmp_path: Path) -> None:
    story = run("examples/story.py", tmp_path)
    assert (story.stderr, story.returncode) == ("", 0)
    lines = story.stdout.splitlines()
    assert lines[0] == "09:00:00  submitted by ada: 4 tasks"
    assert "09:20:06  *** the leader was killed by SIGKILL ***" in lines
    assert "09:20:06  *** another server leads, in term 2: the job is stopping ***" in lines
    assert "09:20:08  attempt 2: reserved 4 tasks on ares, boreas, doris" in lines
    assert "10:00:10  job done" in lines
    assert list(tmp_path.iterdir()) == []
