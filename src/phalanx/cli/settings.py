"""The server's settings as options of a command, generated from their table."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.options import extended
from phalanx.server.config import Config, ConfigError, load
from phalanx.server.options import OPTIONS, Option

NO_DASHBOARD_HELP = "Serve no dashboard."
_NO_DASHBOARD = "no_dashboard"
_FILE = typer.Option("--config", metavar="FILE", help="TOML file with settings.")


def with_settings(
    *names: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add these settings as options to a command whose first parameter is a `Config`.

    Without names, add all of them. The command's own options are kept.
    """
    chosen = [option for option in OPTIONS if not names or option.name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            file = given.pop("config_file")
            flags = {option.name: given.pop(option.name) for option in chosen}
            if given.pop(_NO_DASHBOARD, False):
                flags["dashboard"] = "false"
            command(_load(flags, file), **given)

        file = inspect.Parameter(
            "config_file",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, _FILE],
        )
        settings = [_parameter(option) for option in chosen]
        if any(option.name == "dashboard" for option in chosen):
            settings.append(_no_dashboard())
        return extended(command, run, file, *settings)

    return decorate


def _no_dashboard() -> inspect.Parameter:
    return inspect.Parameter(
        _NO_DASHBOARD,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[
            bool,
            typer.Option("--no-dashboard", help=NO_DASHBOARD_HELP, rich_help_panel="Server"),
        ],
    )


def _parameter(option: Option) -> inspect.Parameter:
    default = option.shown(option.default)
    text = f"{option.help} [default: {default}]" if default else option.help
    flag = typer.Option(
        option.flag, metavar=option.form.upper(), help=text, rich_help_panel=option.group
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, flag],
    )


def _load(flags: dict[str, Any], file: str | None) -> Config:
    try:
        return load(flags, file=file)
    except ConfigError as error:
        refuse(*error.problems)


def refuse(*problems: str) -> NoReturn:
    """Print the problems and exit with the status for wrong usage."""
    end(Status.USAGE, *problems)
