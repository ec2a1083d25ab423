"""Every scenario in `examples/scenarios` has the outcome that it expects, one test for each."""

import re
from collections import Counter
from pathlib import Path

import pytest

from phalanx.manifest import documents
from phalanx.plan.cycle import plan
from phalanx.scenario.expectation import differences, read_expectation
from phalanx.scenario.outcome import settle
from phalanx.scenario.scenario import read_scenario
from phalanx.scenario.times import NOW

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))
#: (file, name, document)
SCENARIOS = [
    (file.name, document["name"], document)
    for file in FILES
    for document in documents.read(file.read_bytes())
    if isinstance(document, dict)
]
#: A page refers to a scenario as `[name](../examples/scenarios/file.yaml)`.
REFERENCE = re.compile(r"\[([^\]]+)\]\([./]*examples/scenarios/([a-z-]+\.yaml)\)")


@pytest.mark.parametrize(
    "document", [pytest.param(document, id=name) for _, name, document in SCENARIOS]
)
def test_the_plan_has_the_expected_outcome(document: object) -> None:
    scenario = read_scenario(document)
    outcome = settle(scenario, plan(scenario.state(), NOW))
    assert list(differences(scenario, read_expectation(scenario), outcome)) == []


def test_scenario_names_are_unique() -> None:
    counts = Counter(name for _, name, _ in SCENARIOS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_planner_page_names_scenarios_that_exist() -> None:
    page = (ROOT / "docs" / "planner.md").read_text("utf-8")
    references = set(REFERENCE.findall(page))
    assert len(references) > 40
    assert references - {(name, file) for file, name, _ in SCENARIOS} == set()
