"""The reference of Python names all that there is to call."""

from pathlib import Path

import pytest

from phalanx import Client, client, task

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text("utf-8")


@pytest.mark.parametrize("name", [name for name in vars(Client) if not name.startswith("_")])
def test_every_method_of_the_client_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE or f"`{name}(" in PAGE or f"client.{name}(" in PAGE


@pytest.mark.parametrize("name", client.__all__)
def test_every_error_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, value in vars(task).items()
        if getattr(value, "__module__", None) == task.__name__ and not name.startswith("_")
    ],
)
def test_all_that_a_task_may_call_is_on_the_page(name: str) -> None:
    assert f"task.{name}" in PAGE or f"`{name}" in PAGE
