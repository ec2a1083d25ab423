"""The reference has only valid examples, and every field."""

import json
import re
from pathlib import Path

import pytest
from tests.manifests import jobs_of

from phalanx.core.spec.schema import JOB_FIELDS, ROLE_FIELDS, SHORT_FIELDS
from phalanx.core.spec.validation import is_short_form, short_form

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "job.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", examples("yaml"))
def test_every_example_is_accepted(example: str) -> None:
    [spec] = jobs_of(example.encode(), timezones={"UTC", "Europe/Zurich"})
    assert spec.size >= 1


def test_the_example_of_the_short_form_is_accepted() -> None:
    [example] = examples("json")
    document = json.loads(example)
    assert is_short_form(document)
    assert document.keys() == SHORT_FIELDS.keys()
    assert short_form(document).size == 4


@pytest.mark.parametrize("field", [*JOB_FIELDS, *ROLE_FIELDS])
def test_every_field_is_in_a_table_with_its_default(field: str) -> None:
    row = re.search(rf"^\| \[?`{field}`.*?\| (.*?) \|", PAGE, re.MULTILINE)
    assert row, f"{field} is not in docs/reference/job.md"
    default = (JOB_FIELDS | ROLE_FIELDS)[field].default
    if isinstance(default, bool | int | str):
        assert row[1] == f"`{json.dumps(default) if not isinstance(default, str) else default}`"


def test_the_tables_keep_the_order_of_the_code() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE)
    assert rows == list(JOB_FIELDS)
