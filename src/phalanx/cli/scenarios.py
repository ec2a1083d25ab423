"""`phalanx plan SCENARIO`: the planner's decisions in words, or compared with expectations."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.output import print_json
from phalanx.cli.visible_text import say
from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.durations import short_duration
from phalanx.core.text import reworded
from phalanx.core.time_units import SECOND
from phalanx.manifest import documents
from phalanx.plan.cycle import plan
from phalanx.scenario.expectation import differences, read_expectation
from phalanx.scenario.outcome import ScenarioOutcome, Step, settle
from phalanx.scenario.scenario import Scenario, read_scenario
from phalanx.scenario.times import NOW

#: Keys of job files of every dialect, which no scenario has.
_JOB_KEYS = {"roles", "command", "apiVersion", "kind"}


def print_scenarios(files: list[str], *, as_json: bool) -> None:
    """Print the planner's decisions for every scenario, in words or as JSON."""
    try:
        outcomes = [_outcome(scenario) for file in files for scenario in _scenarios(file)]
    except (Invalid, OSError) as error:
        end(Status.USAGE, *_problems(error))
    if as_json:
        print_json(outcomes[0] if len(outcomes) == 1 else outcomes)
        return
    for outcome in outcomes:
        say(f"{outcome.name}:")
        for line in _lines(outcome):
            say(f"  {line}")


def check_scenarios(files: list[str]) -> None:
    """Print one line per scenario, `ok` or `FAIL`. Exits with status 1 if one failed."""
    passed = failed = 0
    for file in files:
        try:
            for scenario in _scenarios(file):
                mismatches = list(
                    differences(scenario, read_expectation(scenario), _outcome(scenario))
                )
                say(
                    f"FAIL {scenario.name}: {'; '.join(mismatches)}"
                    if mismatches
                    else f"ok {scenario.name}"
                )
                failed += bool(mismatches)
                passed += not mismatches
        except (Invalid, OSError) as error:
            say(f"FAIL {file}: {'; '.join(_problems(error))}")
            failed += 1
    say(f"{passed} passed, {failed} failed")
    if failed:
        raise typer.Exit(Status.UNSUCCESSFUL)


def _scenarios(file: str) -> Iterator[Scenario]:
    """The scenarios of a file, one per document."""
    for document in documents.read(Path(file).read_bytes()):
        if isinstance(document, Mapping) and not _JOB_KEYS.isdisjoint(document):
            why = f"{file} is a job, not a scenario; plan it with `phalanx plan -f {file}`"
            raise Invalid([Problem("", why)])
        yield read_scenario(document)


def _outcome(scenario: Scenario) -> ScenarioOutcome:
    return settle(scenario, plan(scenario.state(), NOW))


def _problems(error: Invalid | OSError) -> list[str]:
    if isinstance(error, Invalid):
        return [str(problem) for problem in error.problems]
    return [f"{error.filename}: {error.strerror}"]


# Text


def _lines(outcome: ScenarioOutcome) -> Iterator[str]:
    for step in outcome.decisions:
        yield from _decision(step)
    for start in outcome.reserved_starts:
        nodes = ", ".join(start.nodes)
        if start.at is None:
            yield f"reserve {nodes} for {start.job}, start time unknown"
        else:
            yield f"reserve {nodes} for {start.job} in {short_duration((start.at - NOW) / SECOND)}"
    for gang, reason in outcome.reasons.items():
        if gang not in outcome.placed and gang not in outcome.timed_out:
            yield f"{gang} is pending: {reworded(str(reason), {'worker': 'node'})}"
    if not outcome.decisions and not outcome.reasons:
        yield "no decisions"


def _decision(step: Step) -> Iterator[str]:
    gangs = " and ".join(step.gangs)
    match step.decision:
        case "Evict":
            lost = f", losing {_lost_work(step.lost_gpu_s)}" if step.lost_gpu_s else ""
            victims = "; ".join(
                f"{', '.join(tasks)} of {gang}" for gang, tasks in step.victims.items()
            )
            if step.moves:
                yield f"move {_moves(step)} so that {gangs} fits{lost}"
            elif victims:
                yield f"evict {victims} for {gangs}{lost}"
            else:
                yield f"keep the capacity of stopping tasks for {gangs}"
            yield f"  then start {_places(step)}"
        case "Reserve":
            yield f"start {_places(step)}"
        case "Gather":
            yield f"gather {_places(step)}; the gang is still incomplete"
        case "ReleaseGathered":
            yield f"release the places that {gangs} gathered: no gathering gang could start"
        case _:
            yield f"end {gangs}: pending longer than its schedule timeout"


def _moves(step: Step) -> str:
    return "; ".join(f"{gang} to {_nodes(places)}" for gang, places in step.moves.items())


def _lost_work(gpu_s: float) -> str:
    return f"{gpu_s:.0f} GPU-seconds" if gpu_s < 360 else f"{gpu_s / 3600:.1f} GPU-hours"


def _nodes(places: dict[str, str]) -> str:
    return ", ".join(dict.fromkeys(places.values()))


def _places(step: Step) -> str:
    return "; ".join(f"{gang}: {_by_node(places)}" for gang, places in step.places.items())


def _by_node(places: dict[str, str]) -> str:
    """`t0, t1 on n1, t2 on n2`."""
    nodes = itertools.groupby(sorted(places, key=places.__getitem__), key=places.__getitem__)
    return ", ".join(f"{', '.join(tasks)} on {node}" for node, tasks in nodes)
