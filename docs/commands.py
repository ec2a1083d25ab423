"""Writes docs/reference/cli.md's list of commands from the command line itself.

A test fails while the page and the commands differ; `python -m docs.commands` writes it anew.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from phalanx.cli import app
from phalanx.server.options import OPTIONS

PAGE = Path(__file__).parent / "reference" / "cli.md"
BEGIN = "<!-- from phalanx.cli.app by `python -m docs.commands`: begin -->"
END = "<!-- end -->"

#: Explained once for all of them, at the top of the page.
SHARED = {"--help", "--json", "--server", "--token"}
SETTINGS = {option.flag for option in OPTIONS} | {"--config"}


def commands() -> Iterator[tuple[str, str, Any]]:
    """The panel, the words and the command of each, as help shows them."""
    found: Any = typer.main.get_command(app)
    for name, command in found.commands.items():
        below = getattr(command, "commands", None)
        if below is None:
            yield command.rich_help_panel, name, command
        else:
            for inner, each in below.items():
                yield command.rich_help_panel, f"{name} {inner}", each


def flags(command: Any) -> list[Any]:
    """The options that are its own."""
    options = [each for each in command.params if each.param_type_name == "option"]
    takes_all = {flag for each in options for flag in each.opts} >= SETTINGS
    hidden = SHARED | (SETTINGS if takes_all else set())
    return [each for each in options if hidden.isdisjoint(each.opts)]


def usage(name: str, command: Any) -> str:
    words = ["phalanx", name]
    for each in command.params:
        if each.param_type_name == "argument":
            shown = (each.metavar or each.name.upper()).strip("[]")
            shown += "…" if each.nargs != 1 else ""
            words.append(shown if each.required else f"[{shown}]")
    return " ".join(words)


def section(name: str, command: Any) -> str:
    lines = [f"### `{usage(name, command)}`", "", *command.help.splitlines()]
    own = flags(command)
    if own:
        lines += ["", "| option | what it does |", "| --- | --- |"]
        lines += [f"| `{_spelt(each)}` | {_help(each)} |" for each in own]
    if {flag for each in command.params for flag in each.opts} >= SETTINGS:
        lines += ["", "Takes every [setting](configuration.md) as an option."]
    return "\n".join(lines)


def _spelt(option: Any) -> str:
    value = "" if isinstance(option.default, bool) else f" {_value(option)}"
    return ", ".join(sorted(option.opts, key=len, reverse=True)) + value


def _value(option: Any) -> str:
    return str(option.metavar or option.name.upper())


def _help(option: Any) -> str:
    default = option.default
    if isinstance(default, bool | tuple | list) or default is None or "(default" in option.help:
        return str(option.help)
    return f"{option.help} (default: {default})"


def block() -> str:
    """What stands between the two markers, and the markers."""
    parts, last = [BEGIN], ""
    for panel, name, command in commands():
        if panel != last:
            parts.append(f"## {panel}")
            last = panel
        parts.append(section(name, command))
    return "\n\n".join([*parts, END])


def with_block(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + block() + after


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text("utf-8")), "utf-8")
