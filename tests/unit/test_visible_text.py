"""Text from elsewhere is printed without control over the terminal."""

import io
import json
import re
from pathlib import Path

import pytest
import typer
from rich.text import Text

import phalanx.cli
from phalanx.cli import exits, output
from phalanx.cli.output import console, print_fields, print_json, print_json_line, print_table
from phalanx.cli.visible_text import say, visible

HOSTILE = "a\x1b[31m\n\x1b]0;owned\x07\r\x7f\x9b2J\u202eb"
SHOWN = r"a\x1b[31m\n\x1b]0;owned\x07\r\x7f\x9b2J\u202eb"


def test_control_characters_and_direction_overrides_become_escapes() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("naïve 日本 🙂") == "naïve 日本 🙂"


def test_a_sentence_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    assert capsys.readouterr().out == f"{SHOWN}\n"


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        exits.end(exits.Status.USAGE, HOSTILE)
    assert capsys.readouterr().err == f"phalanx: {SHOWN}\n"


def test_a_row_of_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "STATE"], [[HOSTILE, Text("up\x1b\n", style="red")]])
    assert capsys.readouterr().out.splitlines()[1:] == [rf"{SHOWN}  up\x1b\n"]


def test_the_lines_of_a_field_stay_in_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("reason", "x\nphase\x1b"), ("queue", Text("q\x1b"))])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["reason", "x"],
        [r"phase\x1b"],
        ["queue", r"q\x1b"],
    ]
    assert lines[1].startswith(" ")


def test_a_styled_line_keeps_its_styles() -> None:
    out = console()
    out.file, out._color_system, out._force_terminal = io.StringIO(), None, False
    out.print(Text.assemble("at ", ("x\x1b[2J\n", "red"), " end"), soft_wrap=True)
    assert out.file.getvalue() == "at x\\x1b[2J\\n end\n"
    assert output.visible_text(Text.assemble(("a\nb", "red"))).spans


@pytest.mark.parametrize("print_value", [print_json, print_json_line])
def test_json_has_only_escaped_control_characters(
    print_value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    print_value({"name": HOSTILE})  # type: ignore[operator]
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"name": HOSTILE}
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed)


def test_commands_print_text_from_elsewhere_only_through_the_printers() -> None:
    """`typer.echo` prints an empty line, a document, or a text of the command itself."""
    may_echo = {"app", "config", "convert", "local_cluster", "output", "visible_text"}
    may_echo |= {"serve", "simulate", "token", "usage_errors"}
    for file in Path(phalanx.cli.__path__[0]).glob("*.py"):
        if file.stem not in may_echo:
            assert not re.search(r"typer\.echo\([^)]|\bprint\(f?\"", file.read_text()), file.name


def test_the_output_of_a_task_is_unchanged_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_task_output(["main/0 | \x1b[31mred\x1b[0m", "\x1b]0;title\x07\ttab"])
    assert capsys.readouterr().out == "main/0 | \x1b[31mred\x1b[0m\n\x1b]0;title\x07\ttab\n"


def test_of_the_output_of_a_task_a_terminal_gets_only_colours() -> None:
    line = output.prefixed_line("main/0", "\x1b[31mred\x1b[0m\x1b[2J\x1b]0;t\x07 50%\r100%\r")
    assert line.plain == r"main/0 | red\x1b[2J\x1b]0;t\x07 50%\r100%"
    assert any("color(1)" in str(span.style) for span in line.spans)
