"""The pages of the first hour have everything that the code has: variables, phases, statuses."""

import ast
import re
from pathlib import Path

import yaml

from phalanx.cli.exits import Status
from phalanx.cli.help import topics
from phalanx.core.model import Phase
from phalanx.core.states import State

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
#: The modules that set variables of tasks.
SETTING = (
    "core/environment.py",
    "agent/link/starter.py",
    "agent/link/checkpoints.py",
    "agent/task_users.py",
)
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
#: For every parameter of an element; written as PHALANX_PARAM_NAME on the page.
PARAMETER = "PHALANX_PARAM_NAME"


def set_in(module: str) -> set[str]:
    """The variables that a module sets: keys of dictionaries, and of assignments to entries."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / "src" / "phalanx" / module).read_text("utf-8"))):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            keys = list(node.keys)
        elif isinstance(node, ast.Assign):
            keys = [each.slice for each in node.targets if isinstance(each, ast.Subscript)]
        names |= {
            key.value
            for key in keys
            if isinstance(key, ast.Constant)
            and isinstance(key.value, str)
            and VARIABLE.fullmatch(key.value)
        }
    return names


def first_column(page: str) -> list[str]:
    text = (REFERENCE / page).read_text("utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_the_page_about_variables_has_exactly_those_that_tasks_get() -> None:
    in_code = set().union(*map(set_in, SETTING))
    text = (REFERENCE / "variables.md").read_text("utf-8")
    of_users = {"HOME", "USER", "LOGNAME", "SHELL"}
    assert of_users <= in_code
    assert all(f"`{name}`" in text for name in of_users)
    assert set(first_column("variables.md")) - {PARAMETER} == in_code - of_users
    assert "PHALANX_PARAM_" in (ROOT / "src/phalanx/core/environment.py").read_text("utf-8")


def test_the_page_about_phases_has_all_phases_states_and_statuses() -> None:
    native = [state for state in State if state is not State.BLOCKED]
    statuses = ["active", "cordoned", "leaving", "lost"]
    assert first_column("phases.md") == [*Phase, *native, *statuses]


def test_the_topics_of_help_have_what_the_code_has() -> None:
    texts = topics()
    assert re.findall(r"^  ([a-z-]+)  ", texts["phases"], re.MULTILINE) == [*Phase]
    statuses = [int(number) for number in re.findall(r"^  (\d+)  ", texts["exits"], re.MULTILINE)]
    assert statuses == [*Status, 130]
    named = set(re.findall(VARIABLE.pattern + r"(?=[, ])", texts["variables"]))
    in_code = set().union(*map(set_in, SETTING))
    assert {name for name in named if "_" in name} <= in_code


def test_every_page_is_in_the_navigation() -> None:
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    pages = [page for section in listed for page in pages_of(section)]
    docs = ROOT / "docs"
    assert sorted(pages) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))


def pages_of(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, list):
        return [page for each in entry for page in pages_of(each)]
    assert isinstance(entry, dict)
    return [page for each in entry.values() for page in pages_of(each)]
