"""Declaring options: shared ones that are added to several commands, and readers of their values.

A reader raises `typer.BadParameter` with the rest of a sentence that begins with the option's name.
"""

import inspect
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from phalanx.cli.exits import Status, end

E = TypeVar("E", bound=StrEnum)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def quiet_option(panel: str | None = None) -> typer.models.OptionInfo:
    """The option of `phalanx.cli.output.be_quiet`."""
    option: typer.models.OptionInfo = typer.Option(
        "--quiet",
        "-q",
        help="Print only results and errors: no notes, warnings or progress.",
        rich_help_panel=panel,
    )
    return option


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


def extended(
    command: Callable[..., None], run: Callable[..., None], *more: inspect.Parameter
) -> Callable[..., None]:
    """`run` with the name, help and parameters of `command`, except its first one, and `more`."""
    own = list(inspect.signature(command).parameters.values())[1:]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *more)]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def whole_number(least: int | None = None, most: int | None = None) -> Callable[[str | int], int]:
    """The reader of an integer within bounds."""

    def read(value: str | int) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not _is_within(number, least, most):
            raise typer.BadParameter(_cure(value, "a whole number", least, most))
        return number

    return read


def decimal(
    least: float | None = None, most: float | None = None
) -> Callable[[str | float], float]:
    """The reader of a decimal number within bounds."""

    def read(value: str | float) -> float:
        try:
            number = float(value)
        except ValueError:
            number = None
        if number is None or not _is_within(number, least, most):
            raise typer.BadParameter(_cure(value, "a number", least, most))
        return number

    return read


def one_of(choices: type[E]) -> Callable[[str], E]:
    """The reader of one of an enumeration's values."""

    def read(value: str) -> E:
        try:
            return choices(value)
        except ValueError:
            *others, last = choices
            raise typer.BadParameter(f"is {value!r}; write {', '.join(others)} or {last}") from None

    return read


def confirm(question: str, *, yes: bool, refused: str) -> None:
    """Ask the user on a terminal, unless `yes`. Ends the command without a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        end(
            Status.USAGE,
            "standard input is not a terminal, so the changes cannot be confirmed; pass --yes to"
            " make them",
        )
    if not typer.confirm(question, err=True):
        end(Status.UNSUCCESSFUL, refused)


def _is_within(number: float, least: float | None, most: float | None) -> bool:
    """Whether the bounds hold; they never hold for NaN."""
    if number != number:  # noqa: PLR0124
        return False
    return (least is None or number >= least) and (most is None or number <= most)


def _cure(value: object, kind: str, least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        bounds = f" from {least:,} to {most:,}"
    elif least is not None:
        bounds = f", at least {least:,}"
    else:
        bounds = ""
    return f"is {value!r}; write {kind}{bounds}"
