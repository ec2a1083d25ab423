"""`--help` of every command, and the readers of option values."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.options import decimal, one_of, whole_number
from phalanx.core.model import Phase


def paths(command: Any, *above: str) -> Iterator[tuple[str, ...]]:
    yield above
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, *above, name)


@pytest.mark.parametrize("path", list(paths(typer.main.get_command(app))), ids=" ".join)
def test_help_fits_a_terminal_and_describes_every_option(path: tuple[str, ...]) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*path, "--help"], prog_name="phalanx")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(" ".join(["Usage: phalanx", *path]))
    examples = [line for line in lines if line.startswith("  phalanx ")]
    assert [line for line in lines if len(line) > 80 and line not in examples] == []
    entries = [line for line in lines if line.startswith("  -")]
    assert entries, "no options are listed"
    assert "<bool>" not in result.stdout


def test_help_lists_the_commands_by_topic_and_a_cluster_first() -> None:
    lines = CliRunner().invoke(app, ["--help"]).stdout.splitlines()
    topics = [line.removesuffix(":") for line in lines if line.endswith(":")]
    assert topics[:2] == ["Run a cluster", "Submit and follow jobs"]
    assert topics[-1] == "Options"


def test_a_group_without_a_command_prints_its_help() -> None:
    result = CliRunner().invoke(app, ["cron"], prog_name="phalanx")
    assert (result.exit_code, result.stderr) == (2, "")
    assert result.stdout.startswith("Usage: phalanx cron [OPTIONS] COMMAND\n")


@pytest.mark.parametrize(
    ("reader", "value", "sentence"),
    [
        (whole_number(), "1.5", "is '1.5'; write a whole number"),
        (whole_number(1), "0", "is '0'; write a whole number, at least 1"),
        (whole_number(0, 1000), "1001", "is '1001'; write a whole number from 0 to 1,000"),
        (decimal(0.1), "nan", "is 'nan'; write a number, at least 0.1"),
        (decimal(1, 1000), "x", "is 'x'; write a number from 1 to 1,000"),
        (one_of(Phase), "odd", "is 'odd'; write pending, starting, running, stopping, done,"),
    ],
)
def test_a_reader_says_what_to_write(reader: Any, value: str, sentence: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        reader(value)
    assert refused.value.message.startswith(sentence)


@pytest.mark.parametrize(
    ("reader", "value", "read"),
    [
        (whole_number(0, 9), "7", 7),
        (whole_number(), "-3", -3),
        (decimal(0.1), "0.5", 0.5),
        (one_of(Phase), "timed-out", Phase.TIMED_OUT),
        (one_of(Phase), Phase.DONE, Phase.DONE),
    ],
)
def test_a_reader_reads(reader: Any, value: object, read: object) -> None:
    assert reader(value) == read


def test_a_command_imports_no_other_command_and_no_http_client() -> None:
    program = (
        "import sys; from phalanx.cli.app import app\n"
        "app(['worker', '--help'], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)  # noqa: S603
    imported = set(done.stdout.decode().splitlines()[-1].split())
    assert "phalanx.cli.worker" in imported
    assert imported & {"phalanx.cli.serve", "phalanx.cli.jobs", "httpx", "rich"} == set()


def test_a_worker_imports_no_planner_and_no_library_that_it_does_not_use() -> None:
    program = (
        "import atexit, sys; from phalanx.cli import main\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        "sys.argv = ['phalanx', 'worker', '--state-dir=/proc/refused']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)  # noqa: S603
    assert b"cannot use the state directory" in done.stderr
    imported = set(done.stdout.decode().split())
    assert "phalanx.agent.link.sync_loop" in imported
    unused = {"phalanx.plan.cycle", "phalanx.plan.decisions", "numpy", "httpx", "rich"}
    assert imported & unused == set()


@pytest.mark.parametrize("path", list(paths(typer.main.get_command(app))), ids=" ".join)
def test_every_command_has_an_example_that_its_parser_accepts(path: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    for word in path:
        command = command.commands[word]
    if hasattr(command, "commands") and not command.invoke_without_command:
        return
    text = (
        CliRunner(env={"COLUMNS": "80"}).invoke(app, [*path, "--help"], prog_name="phalanx").stdout
    )
    examples = [line.strip() for line in text.splitlines() if line.startswith("  phalanx ")]
    assert examples, f"phalanx {' '.join(path)} --help has no example"
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])[1:]
        assert tuple(words[: len(path)]) == path
        context = typer.Context(command, info_name=" ".join(path), resilient_parsing=False)
        command.make_parser(context).parse_args(args=words[len(path) :])
