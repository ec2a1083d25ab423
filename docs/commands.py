"""Generates the list of commands in docs/reference/cli.md from the command line.

A test fails if the page is out of date; `make docs` updates it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from phalanx.cli import help_pages
from phalanx.cli.app import app
from phalanx.cli.completion import JOB_HELP
from phalanx.cli.connection import SERVER_PANEL
from phalanx.cli.help_examples import with_example
from phalanx.server.options import OPTIONS

PAGE = Path(__file__).parent / "reference" / "cli.md"
BEGIN = "<!-- from phalanx.cli.app by `python -m docs.commands`: begin -->"
END = "<!-- end -->"

#: Options of almost every command, explained at the top of the page.
SHARED = {"--help", "--json", "--server", "--quiet"}
#: Arguments that need no explanation on this page.
PLAIN_ARGUMENTS = {JOB_HELP, "Worker id.", "Queue name.", "Cron name, or NAMESPACE/NAME."}
SETTINGS = {option.flag for option in OPTIONS} | {"--config"}


def commands() -> Iterator[tuple[str, str, Any]]:
    """The topic, the name and the object of every command, in the order of `--help`."""
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        below = getattr(command, "commands", {})
        if not below or command.invoke_without_command:
            yield command.rich_help_panel, name, command
        for inner, each in below.items():
            yield command.rich_help_panel, f"{name} {inner}", each


def flags(command: Any) -> list[Any]:
    """The command's own options, without those that every command with a server has."""
    options = [each for each in command.params if each.param_type_name == "option"]
    takes_all = {flag for each in options for flag in each.opts} >= SETTINGS
    hidden = SHARED | (SETTINGS if takes_all else set())
    return [each for each in options if hidden.isdisjoint(each.opts) and not _is_token(each)]


def _is_token(option: Any) -> bool:
    """Whether this is the token of every command with a server, and not a token to join with."""
    return "--token-file" in option.opts and option.rich_help_panel == SERVER_PANEL


def section(name: str, command: Any) -> str:
    arguments = [
        each
        for each in command.params
        if each.param_type_name == "argument" and each.help not in PLAIN_ARGUMENTS
    ]
    usage = help_pages.usage(f"phalanx {name}", command).replace(" [OPTIONS]", "")
    lines = [f"### `{usage}`", "", *description(with_example(name, command.help))]
    if arguments:
        lines += ["", "| argument | meaning |", "| --- | --- |"]
        lines += [f"| `{help_pages.argument_name(each)}` | {each.help} |" for each in arguments]
    own = flags(command)
    if own:
        lines += ["", "| option | meaning |", "| --- | --- |"]
        lines += [f"| `{_cell(help_pages.option_entry(each))}` | {_help(each)} |" for each in own]
    if {flag for each in command.params for flag in each.opts} >= SETTINGS:
        lines += ["", "Takes every [setting](configuration.md) as an option."]
    return "\n".join(lines)


def description(text: str) -> Iterator[str]:
    """Its paragraphs, with the example as a block."""
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ""
        if paragraph.strip().startswith("phalanx "):
            yield from ("```text", *(line.strip() for line in paragraph.splitlines()), "```")
        else:
            yield from paragraph.splitlines()


def _help(option: Any) -> str:
    return _cell(help_pages.option_help(option))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def block() -> str:
    """The generated part of the page, with its markers."""
    topics: dict[str, list[str]] = {}
    for topic, name, command in commands():
        topics.setdefault(topic, []).append(section(name, command))
    parts = [part for topic, sections in topics.items() for part in (f"## {topic}", *sections)]
    return "\n\n".join([BEGIN, *parts, END])


def with_block(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + block() + after


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text("utf-8")), "utf-8")
