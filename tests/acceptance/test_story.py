"""`make demo` does what the README shows: the same lines, from a real run."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSCRIPT = re.compile(
    r"^<!-- what `python (\S+)` prints.*-->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def run(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / script)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)  # noqa: S603


def test_the_story_is_the_one_that_the_readme_tells(tmp_path: Path) -> None:
    shown = TRANSCRIPT.search((ROOT / "README.md").read_text("utf-8"))
    assert shown, "README.md has no transcript of the demo"
    script, transcript = shown.groups()
    story = run(script, tmp_path)
    assert story.stderr == ""
    assert story.returncode == 0
    assert story.stdout == transcript, "put what `python examples/story.py` prints into README.md"


def test_the_story_leaves_nothing_behind(tmp_path: Path) -> None:
    run("examples/story.py", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_make_demo_tells_the_story() -> None:
    recipe = re.search(r"^demo:.*\n\t(.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe
    assert recipe[1].startswith("$(BIN)/python examples/story.py")
