"""The settings reference matches the code, and the commands and files of its pages work."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from docs import settings
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.server.config import Config, Given
from phalanx.server.options import OPTIONS

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "run-a-server.md"
PAGES = (settings.PAGE, HOW_TO)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


def commands() -> list[str]:
    lines = "".join(block for page in PAGES for block in blocks(page, "sh")).splitlines()
    inline = [
        code
        for page in PAGES
        for code in re.findall(r"`(phalanx [^`]+)`", re.sub(r"```.*?```", "", page.read_text()))
    ]
    return [*lines, *(code for code in inline if not code.endswith((".db", ".toml")))]


def test_the_tables_are_those_of_the_code() -> None:
    page = settings.PAGE.read_text("utf-8")
    assert settings.BEGIN in page
    assert settings.with_block(page) == page, "run `python -m docs.settings`"
    assert all(f"| `{option.name}` |" in page for option in OPTIONS)


@pytest.mark.parametrize("command", commands())
def test_every_command_that_is_shown_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    program, *arguments = shlex.split(command.replace("/srv/phalanx", str(tmp_path)))
    assert program == "phalanx"
    run = CliRunner().invoke
    if arguments[0] == "serve":
        # `config` takes the flags of `serve` and refuses what it would refuse.
        arguments[0] = "config"
    if arguments[0] == "token" and "--store" not in arguments:
        arguments += ["--store", f"sqlite:{tmp_path}/phalanx.db"]  # there is no server to ask
    if arguments[:2] in (["token", "revoke"], ["token", "rotate"]):
        store = arguments[arguments.index("--store") :]
        assert run(app, ["token", "create", arguments[2], "--role", "admin", *store]).exit_code == 0
    result = run(app, arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks(page, "toml")])
def test_every_file_that_is_shown_is_accepted(block: str) -> None:
    Config({key: Given(value, key) for key, value in tomllib.loads(block).items()})
