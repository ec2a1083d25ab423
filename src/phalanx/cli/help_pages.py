"""`--help`: usage, description, arguments, and options by topic, in plain text."""

import re
from collections.abc import Iterable, Iterator
from shutil import get_terminal_size
from textwrap import fill, wrap
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from phalanx.cli.help_examples import with_example

_OPTIONS = "Options"
#: The help text begins at the same column for all entries that are not wider than this.
_MAX_ENTRY_WIDTH = 28
_MAX_WIDTH = 100
_INDENT = 2
#: Where a command keeps the words after `--`, which the parser does not tell from others.
_AFTER_DASHES = "phalanx.after_dashes"

Entry = tuple[str, str]


class HelpCommand(TyperCommand):
    """A command that prints its help with `page`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_AFTER_DASHES] = args[args.index("--") + 1 :] if "--" in args else []
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(ctx.command_path, self, ctx))


def words_after_dashes(ctx: typer.Context) -> list[str]:
    """The words that were given after `--`."""
    words: list[str] = ctx.meta[_AFTER_DASHES]
    return words


class HelpGroup(TyperGroup):
    """A group of commands that prints its help with `page`."""

    command_class = HelpCommand

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(ctx.command_path, self, ctx))


def page(path: str, command: Any, ctx: typer.Context) -> str:
    """The help of one command or group."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    sections: dict[str, list[Entry]] = {}
    if arguments:
        sections["Arguments"] = [(argument_name(each), each.help or "") for each in arguments]
    for name, below in getattr(command, "commands", {}).items():
        panel = below.rich_help_panel or "Commands"
        sections.setdefault(panel, []).append((name, first_sentence(below.help or "")))
    options: dict[str, list[Entry]] = {_OPTIONS: []} if not hasattr(command, "commands") else {}
    for each in command.get_params(ctx):
        if each.param_type_name == "option" and not each.hidden:
            panel = each.rich_help_panel or _OPTIONS
            options.setdefault(panel, []).append((option_entry(each), option_help(each)))
    parts = [
        f"Usage: {usage(path, command)}",
        *_description(with_example(path, command.help or "")),
    ]
    for listed in (sections, options):
        width = _entry_width(name for entries in listed.values() for name, _ in entries)
        for title, entries in listed.items():
            parts.append("\n".join([f"{title}:", *_columns(entries, width)]))
    return "\n\n".join(parts)


def usage(path: str, command: Any) -> str:
    """`phalanx priority [OPTIONS] JOB PRIORITY`."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    words = [path, "[OPTIONS]"]
    words += [
        argument_name(each) if each.required else f"[{argument_name(each)}]" for each in arguments
    ]
    return " ".join([*words, "COMMAND"] if hasattr(command, "commands") else words)


def argument_name(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper()).strip("[]")
    return f"{name}..." if argument.nargs != 1 else name


def option_entry(option: Any) -> str:
    """`-f, --file FILE`."""
    names = ", ".join(sorted(option.opts, key=len))
    return names if _is_switch(option) else f"{names} {option.metavar or option.name.upper()}"


def option_help(option: Any) -> str:
    """The option's text, its default and its environment variable."""
    text = str(option.help or "") + (" [required]" if option.required else "")
    default = option.default
    is_shown = (
        not _is_switch(option) and default not in (None, "", (), []) and not callable(default)
    )
    if is_shown and "default:" not in text:
        text += f" [default: {default}]"
    if option.envvar:
        text += f" [env: {option.envvar}]"
    return text


def first_sentence(text: str) -> str:
    """The first sentence of a text, without its full stop."""
    first = text.partition("\n\n")[0].replace("\n", " ")
    return re.split(r"\.(?:\s|$)", first, maxsplit=1)[0]


def _is_switch(option: Any) -> bool:
    return bool(getattr(option, "is_flag", False))


def _description(text: str) -> Iterator[str]:
    """Its paragraphs; one that begins with a command is an example and is not wrapped."""
    for paragraph in filter(None, (part.strip() for part in text.split("\n\n"))):
        if paragraph.startswith("phalanx "):
            yield "\n".join(["Example:", *(f"  {line.strip()}" for line in paragraph.splitlines())])
        else:
            yield fill(" ".join(paragraph.split()), _width())


def _entry_width(names: Iterable[str]) -> int:
    return max((len(name) for name in names if len(name) <= _MAX_ENTRY_WIDTH), default=0)


def _columns(entries: Iterable[Entry], width: int) -> Iterator[str]:
    margin = " " * (_INDENT + width + 2)
    for name, text in entries:
        lines = wrap(text, max(20, _width() - len(margin)), break_on_hyphens=False) or [""]
        head = f"{' ' * _INDENT}{name}"
        if len(name) > width:
            yield head
        else:
            yield f"{head:<{len(margin)}}{lines.pop(0)}".rstrip()
        yield from (margin + line for line in lines if line)


def _width() -> int:
    return min(get_terminal_size().columns, _MAX_WIDTH)
