"""The pages about manifests: each example is followed by the job that it becomes."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.manifests import bundled

from phalanx.core.errors import Invalid
from phalanx.manifest import documents
from phalanx.manifest.bundle import bundle, read
from phalanx.manifest.native_file import native_yaml
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.translation import KINDS

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
def test_every_example_becomes_the_job_after_it(example: Example) -> None:
    given, native = bundled(example.given), bundled(example.native)
    assert given.jobs or given.queues
    assert (given.jobs, given.queues) == (native.jobs, native.queues)


@pytest.mark.parametrize("kind", sorted({kind for _, kind in KINDS}))
def test_every_kind_is_on_a_page(kind: str) -> None:
    assert any(f"kind: {kind}\n" in example.given for example in examples())


def test_every_page_but_the_first_has_an_example() -> None:
    shown = {example.page for example in examples()}
    assert {page.name for page in PAGES if page not in shown} == {"overview.md"}


# Invalid documents


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document, as its parent and the key there."""
    keys: Any = value.keys() if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += parts(value[key])
    return found


SCALARS = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=4)
ODD = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=4), SCALARS)


@settings(max_examples=300)
@given(st.data())
def test_a_document_with_any_value_at_any_place_is_read_or_refused(data: st.DataObject) -> None:
    example = data.draw(st.sampled_from(examples()))
    found = documents.read(example.given.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        parent, key = data.draw(st.sampled_from(parts(found)))
        parent[key] = data.draw(ODD)
    ignore = data.draw(st.booleans())
    whole = data.draw(st.booleans())
    lenient = ReadOptions(ignore_image=ignore, ignore_unsupported=ignore, whole_gangs=whole)
    jobs = []
    with suppress(Invalid):
        jobs = bundle(found, lenient).jobs
    if jobs and whole:
        assert read(native_yaml(jobs).encode()).jobs == jobs
