"""The pages about manifests: each example is followed by what it becomes."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.manifests import bundled

from phalanx.manifest.bundle import _KINDS

PAGES = sorted((Path(__file__).parents[2] / "docs" / "manifests").glob("*.md"))
FENCE = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    page: Path
    given: str
    native: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.given.splitlines()[1]}"


def examples() -> list[Example]:
    found = []
    for page in PAGES:
        blocks = FENCE.findall(page.read_text("utf-8"))
        found += [Example(page, *pair) for pair in zip(blocks[::2], blocks[1::2], strict=True)]
    return found


@pytest.mark.parametrize("example", examples(), ids=str)
def test_every_example_becomes_what_stands_after_it(example: Example) -> None:
    given, native = bundled(example.given), bundled(example.native)
    assert given.jobs or given.queues
    assert (given.jobs, given.queues) == (native.jobs, native.queues)


@pytest.mark.parametrize("kind", sorted({kind for _, kind in _KINDS}))
def test_every_kind_is_on_a_page(kind: str) -> None:
    assert any(f"kind: {kind}\n" in example.given for example in examples())


def test_every_page_but_the_first_has_an_example() -> None:
    shown = {example.page for example in examples()}
    assert {page.name for page in PAGES if page not in shown} == {"overview.md"}
