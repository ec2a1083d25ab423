"""The compatibility page names tests that exist, and gives a reason for every departure."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def named_tests() -> list[tuple[str, str]]:
    return sorted(set(TEST.findall(PAGE.read_text("utf-8"))))


def rows() -> list[list[str]]:
    """The cells of every row of every table, without the heads."""
    lines = PAGE.read_text("utf-8").splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    rules = [at for at, row in enumerate(cells) if set("".join(row).strip()) <= set("- ")]
    heads = {at - 1 for at in rules}
    return [
        [cell.strip() for cell in row]
        for at, row in enumerate(cells)
        if at not in heads and at not in rules
    ]


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


@pytest.mark.parametrize(("file", "name"), named_tests())
def test_every_test_that_is_named_exists(file: str, name: str) -> None:
    assert name.startswith("test_")
    assert name in functions_of(file)


def test_every_item_names_a_test_and_its_departure() -> None:
    assert rows()
    for item, tested, departure in rows():
        assert item
        assert TEST.search(tested), f"{item}: name a test as `tests/…/test_x.py::test_name`"
        assert departure, f"{item}: say which departure there is, or none"
