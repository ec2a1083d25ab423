"""Errors of the command-line parser in our own words: what is wrong, and what to write instead."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer

from phalanx.cli.command_table import Commands
from phalanx.cli.exits import Status
from phalanx.cli.help_pages import HelpGroup
from phalanx.cli.visible_text import say

_NO_COMMAND = re.compile(r"No such command '(?P<name>.*?)'\.(?: Did you mean (?P<similar>.+)\?)?")
#: Options of most commands, but not of the program itself.
_OPTIONS_OF_COMMANDS = ("--server", "--token-file", "--quiet", "-q", "--json", "--namespace", "-n")
_NEGATIVE = re.compile(r"-[0-9]+")
_MOST_SIMILAR = 2
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<given>.*)\)")


class CommandLine(HelpGroup):
    """The root of all commands, which prints the parser's errors in our words."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **given: Any,
    ) -> Any:
        try:
            status = super().main(
                args, prog_name, complete_var, False, windows_expand_args, **given
            )
        except typer.TyperException as error:
            if not standalone_mode:
                raise
            if error.message.startswith("Usage: "):  # a group without a command: its help
                typer.echo(error.message)
            else:
                say(f"phalanx: {sentence_of(error)}", err=True)
            sys.exit(Status.USAGE)
        except typer.Abort:  # Ctrl-D or Ctrl-C at a prompt
            sys.exit(Status.UNSUCCESSFUL)
        if not standalone_mode:
            return status
        sys.exit(status)


def sentence_of(error: typer.TyperException) -> str:
    """The sentence for an error that the parser raised."""
    command = _command(error)
    see = f"see `{command} --help`"
    if isinstance(error, typer.BadParameter):
        name = _parameter_name(error)
        if hasattr(error, "param_type"):  # the parser's error for a missing parameter
            return f"{name} is missing; {see}"
        return f"{name} {error.message}"
    option = getattr(error, "option_name", None)
    if option is not None:
        return _about_option(error, option, command, see)
    if unknown := _NO_COMMAND.match(error.message):
        similar = unknown["similar"]
        cure = f"did you mean {similar.replace(chr(39), '')}?" if similar else see
        return f"{unknown['name']} is not a command; {cure}"
    if extra := _EXTRA.match(error.message):
        return f"`{command}` does not take the argument {extra['given']}; {see}"
    return f"{error.message.rstrip('.')}; {see}"


def _about_option(error: typer.TyperException, option: str, command: str, see: str) -> str:
    if hasattr(error, "possibilities"):  # the parser's error for an unknown option
        similar = " or ".join((error.possibilities or ())[:_MOST_SIMILAR])
        cure = f"did you mean {similar}?" if similar else see
        if command == "phalanx" and option in _OPTIONS_OF_COMMANDS:
            cure = f"write it after the command, like `phalanx jobs {option}`"
        elif _NEGATIVE.fullmatch(option):
            cure = f"write -- before a negative number: -- {option}"
        return f"{option} is not an option of `{command}`; {cure}"
    if "does not take a value" in error.message:
        return f"{option} does not take a value; write {option} alone"
    return f"{option} needs a value; {see}"


def _command(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return "phalanx" if context is None else str(context.command_path)


def _parameter_name(error: typer.BadParameter) -> str:
    parameter = error.param
    if parameter is None:
        return "an argument"
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name)
    return max(parameter.opts, key=len)
