"""The processes that the tests fork behave as those of the installed script."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.acceptance.terminal import PATIENCE_S, SCRIPT, environment
from tests.preloaded import start_phalanx

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("words", ["--version", "serve --bogus", "convert job.yaml", "convert -"])
def test_output_and_status_are_those_of_the_script(words: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: [\n", encoding="utf-8")
    script = subprocess.run(  # noqa: S603
        [SCRIPT, *words.split()],
        input=b"name: {\n",
        capture_output=True,
        timeout=PATIENCE_S,
        env=environment(),
        cwd=tmp_path,
        check=False,
    )
    forked = start_phalanx(
        *words.split(), stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment(), cwd=tmp_path
    )
    assert forked.communicate(b"name: {\n", PATIENCE_S) == (script.stdout, script.stderr)
    assert forked.returncode == script.returncode


TESTING = """
import os, threading
from tests.preloaded import start_phalanx

start_phalanx("--version", env=dict(os.environ)).wait()
threading.Event().wait()
"""


def test_no_process_with_imported_modules_outlives_a_killed_test_process() -> None:
    command = [sys.executable, "-c", TESTING]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, cwd=ROOT) as tests:  # noqa: S603
        assert tests.stdout is not None
        assert tests.stdout.readline().startswith(b"phalanx ")
        tests.kill()
        # The pipe ends with the last process that has it.
        assert tests.communicate(timeout=PATIENCE_S) == (b"", b"")
