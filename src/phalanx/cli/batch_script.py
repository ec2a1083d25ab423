"""Scripts with `#PHALANX` lines: the options of `phalanx submit` in the comments at their top.

The text of the script is submitted, so it need not exist on the workers, and later changes of the
file have no effect on the job.
"""

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.job_options import JOB_OPTIONS, given_fields
from phalanx.cli.output import warn
from phalanx.cli.usage_errors import sentence_of

_DIRECTIVE = "#PHALANX"
_OTHER_DIRECTIVE = re.compile(r"#(SBATCH|PBS|BSUB|\$) -")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_PYTHON = re.compile(r"python[0-9.]*")


class BatchScript(NamedTuple):
    command: list[str]
    fields: dict[str, Any]  #: the fields that its lines set, by the name of the option


def read_script(file: str, arguments: list[str], context: typer.Context) -> BatchScript:
    """The job of a script. Ends the command if it is not one, with the number of the line."""
    try:
        text = Path(file).read_text("utf-8")
    except FileNotFoundError:
        end(Status.USAGE, f"there is no script {file}; to submit a command, write -- before it")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        end(Status.USAGE, f"{file}: {reason}; to submit a command, write -- before it")
    return BatchScript(_command(file, text, arguments), _fields(file, text, context))


def _command(file: str, text: str, arguments: list[str]) -> list[str]:
    first = text.partition("\n")[0]
    interpreter = shlex.split(first[2:]) if first.startswith("#!") else []
    if not interpreter:
        program = "python " if file.endswith(".py") else "./"
        command = shlex.join([*f"{program}{file}".split(), *arguments])
        end(
            Status.USAGE,
            f"{file}, line 1: a script begins with its interpreter, like #!/bin/bash; to submit it"
            f" as a command, write `phalanx submit -- {command}`",
        )
    name = Path(interpreter[-1] if interpreter[0].endswith("/env") else interpreter[0]).name
    if name not in _SHELLS and not _PYTHON.fullmatch(name):
        end(
            Status.USAGE,
            f"{file}, line 1: {name} cannot run the text of a script; submit the command instead:"
            f" phalanx submit -- {shlex.join([*interpreter, file, *arguments])}",
        )
    own_name = [Path(file).name] if name in _SHELLS else []  # $0, which Python does not have
    return [*interpreter, "-c", text, *own_name, *arguments]


def _fields(file: str, text: str, context: typer.Context) -> dict[str, Any]:
    """The values of all `#PHALANX` lines; a later line replaces an earlier one."""
    values: dict[str, Any] = {}
    is_top = True
    for number, line in enumerate(text.splitlines(), 1):
        if _OTHER_DIRECTIVE.match(line) and is_top:
            warn(f"{file}, line {number}: only {_DIRECTIVE} lines are read, not {line.split()[0]}")
        if line.split(maxsplit=1)[:1] != [_DIRECTIVE]:
            is_top = is_top and (not line.strip() or line.lstrip().startswith("#"))
            continue
        if not is_top:
            end(
                Status.USAGE,
                f"{file}, line {number}: a {_DIRECTIVE} line comes after a command; move it to the"
                " top of the script",
            )
        try:
            read = _options(shlex.split(line[len(_DIRECTIVE) :], comments=True), context)
        except ValueError as error:
            end(Status.USAGE, f"{file}, line {number}: {str(error).lower()}")
        except typer.TyperException as error:
            end(Status.USAGE, f"{file}, line {number}: {sentence_of(error)}")
        for name, value in read.items():
            values[name] = values.get(name, []) + value if isinstance(value, list) else value
    return given_fields(values)


def _options(words: list[str], context: typer.Context) -> dict[str, Any]:
    """The values of options. Raises TyperException, and ValueError for other words."""
    command: Any = context.command
    given, _, _ = command.make_parser(context).parse_args(args=words)
    parameters = {each.name: each for each in command.params}
    others = given.pop("words", None)
    for name in given:
        if name not in JOB_OPTIONS:
            flag = max(parameters[name].opts, key=len)
            raise ValueError(f"{flag} is not an option of the job; write it after `phalanx submit`")
    if others:
        raise ValueError(f"{others[0]} is not an option; write options, like --gang 4")
    values = {}
    for name, raw in given.items():
        try:
            values[name] = parameters[name].process_value(context, raw)
        except typer.BadParameter as error:
            error.param = parameters[name]
            raise
    return values
