"""`phalanx submit SCRIPT`: the options in its #PHALANX lines, and mistakes by line."""

from pathlib import Path

import pytest

from tests.acceptance.terminal import Said, Terminal

SCRIPT = """#!/bin/bash
# train with two tasks
#PHALANX --gang 2 --env A=1 --env B=1
#PHALANX --name from-script  # --name in the command line wins

echo "rank $RANK"
"""


def submitted(terminal: Terminal, tmp_path: Path, text: str, *words: str) -> Said:
    (tmp_path / "train.sh").write_text(text)
    before, after = words[: words.index("|")], words[words.index("|") + 1 :]
    return terminal.type("submit", *before, str(tmp_path / "train.sh"), *after)


def test_a_script_is_submitted_with_its_text_options_and_arguments(
    terminal: Terminal, tmp_path: Path
) -> None:
    words = ("--env", "B=2", "--name", "mine", "|", "--lr", "0.1", "--", "x")
    said = submitted(terminal, tmp_path, SCRIPT, *words)
    assert said.status == 0, said.err
    job = terminal.type("job", said.out.strip(), "--json").json
    role = job["spec"]["roles"]["worker"]
    assert (job["name"], job["size"], role["env"]) == ("mine", 2, {"A": "1", "B": "2"})
    assert role["command"] == ["/bin/bash", "-c", SCRIPT, "train.sh", "--lr", "0.1", "--", "x"]
    shown = terminal.type("job", said.out.strip()).out
    assert "2 tasks: /bin/bash -c (script) train.sh --lr 0.1 -- x" in shown


def test_a_script_of_python_gets_its_arguments(terminal: Terminal, tmp_path: Path) -> None:
    text = "#!/usr/bin/env python3\nimport sys\nprint(sys.argv)\n"
    said = submitted(terminal, tmp_path, text, "|", "a")
    role = terminal.type("job", said.out.strip(), "--json").json["spec"]["roles"]["worker"]
    assert role["command"] == ["/usr/bin/env", "python3", "-c", text, "a"]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("echo", 1, "a script begins with its interpreter, like #!/bin/bash"),
        ("#!/usr/bin/perl", 1, "perl cannot run the text of a script; submit the command instead"),
        ("#!/bin/sh\n#PHALANX --gnag 2", 2, "--gnag is not an option of `phalanx submit`; did"),
        ("#!/bin/sh\n#PHALANX --gang two", 2, "--gang is 'two'; write a whole number, at least 1"),
        ("#!/bin/sh\n#PHALANX --gang", 2, "--gang needs a value"),
        ("#!/bin/sh\n\n#PHALANX 4", 3, "4 is not an option; write options, like --gang 4"),
        ("#!/bin/sh\n#PHALANX --wait", 2, "--wait is not an option of the job"),
        ("#!/bin/sh\n#PHALANX --name 'x", 2, "no closing quotation"),
        ("#!/bin/sh\necho\n#PHALANX --gang 2", 3, "a #PHALANX line comes after a command"),
    ],
)
def test_a_mistake_in_a_script_is_refused_with_its_line(
    terminal: Terminal, tmp_path: Path, text: str, line: int, problem: str
) -> None:
    said = submitted(terminal, tmp_path, text, "|")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"phalanx: {tmp_path / 'train.sh'}, line {line}: {problem}")


def test_lines_of_other_schedulers_are_named(terminal: Terminal, tmp_path: Path) -> None:
    said = submitted(terminal, tmp_path, "#!/bin/sh\n#SBATCH --ntasks=4\n", "|")
    assert said.status == 0
    assert "line 2: only #PHALANX lines are read, not #SBATCH" in said.err


def test_a_script_that_does_not_exist_is_not_taken_for_a_command(terminal: Terminal) -> None:
    said = terminal.type("submit", "python", "train.py")
    assert said.status == 2
    assert said.err == (
        "phalanx: there is no script python; to submit a command, write -- before it\n"
    )
