"""Scenarios on the command line: what the planner would do, and whether that was expected."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.formatting import lasting
from phalanx.cli.output import print_json
from phalanx.core.errors import Invalid
from phalanx.core.spec.job import SECOND
from phalanx.manifest import documents
from phalanx.plan.cycle import plan
from phalanx.scenario.expectation import differences, read_expectation
from phalanx.scenario.outcome import ScenarioOutcome, Step, settle
from phalanx.scenario.scenario import NOW, Scenario, read_scenario


def answer(files: list[str], *, as_json: bool) -> None:
    """Say in words, or as data, what the planner would do in each."""
    try:
        outcomes = [_outcome(scenario) for file in files for scenario in _scenarios(file)]
    except (Invalid, OSError) as error:
        end(Status.USAGE, *_wrongs(error))
    if as_json:
        print_json(outcomes[0] if len(outcomes) == 1 else outcomes)
        return
    for outcome in outcomes:
        typer.echo(f"{outcome.name}:")
        for line in _told(outcome):
            typer.echo(f"  {line}")


def check_all(files: list[str]) -> None:
    """One line for each scenario, and a status for scripts."""
    passed = failed = 0
    for file in files:
        try:
            for scenario in _scenarios(file):
                wrong = list(differences(scenario, read_expectation(scenario), _outcome(scenario)))
                typer.echo(
                    f"FAIL {scenario.name}: {'; '.join(wrong)}" if wrong else f"ok {scenario.name}"
                )
                failed += bool(wrong)
                passed += not wrong
        except (Invalid, OSError) as error:
            typer.echo(f"FAIL {file}: {'; '.join(_wrongs(error))}")
            failed += 1
    typer.echo(f"{passed} passed, {failed} failed")
    if failed:
        raise typer.Exit(Status.UNSUCCESSFUL)


def _scenarios(file: str) -> Iterator[Scenario]:
    """Each document of a file is one."""
    for document in documents.read(Path(file).read_bytes()):
        yield read_scenario(document)


def _outcome(scenario: Scenario) -> ScenarioOutcome:
    return settle(scenario, plan(scenario.state(), NOW))


def _wrongs(error: Invalid | OSError) -> list[str]:
    if isinstance(error, Invalid):
        return [str(problem) for problem in error.problems]
    return [f"{error.filename}: {error.strerror}"]


# Words


def _told(outcome: ScenarioOutcome) -> Iterator[str]:
    for step in outcome.decisions:
        yield from _step(step)
    for head in outcome.heads:
        when = "as soon as it can" if head.at is None else f"in {lasting((head.at - NOW) / SECOND)}"
        yield f"{head.job} is to start {when} on {', '.join(head.nodes)}"
    for gang, reason in outcome.reasons.items():
        if gang not in outcome.placed:
            yield f"{gang} waits: {reason}"
    if not outcome.decisions and not outcome.reasons:
        yield "nothing happens"


def _step(step: Step) -> Iterator[str]:
    gangs = " and ".join(step.gangs)
    match step.decision:
        case "Evict":
            lost = f", losing {step.lost_gpu_s / 3600:.1f} GPU-hours" if step.lost_gpu_s else ""
            victims = "; ".join(
                f"{', '.join(tasks)} of {gang}" for gang, tasks in step.victims.items()
            )
            yield (
                f"evict {victims} for {gangs}{lost}"
                if victims
                else f"keep for {gangs} what others leave"
            )
            yield f"  then start {_places(step)}"
        case "Reserve":
            yield f"start {_places(step)}"
        case "Hold":
            yield f"hold for {_places(step)}, while it waits for the rest"
        case "LetGo":
            yield f"{gangs} lets go of what it holds: nobody who holds could ever start"
        case _:
            yield f"{gangs} gives up: it has waited as long as it may"


def _places(step: Step) -> str:
    return "; ".join(f"{gang}: {_grouped(places)}" for gang, places in step.places.items())


def _grouped(places: dict[str, str]) -> str:
    """`t0, t1 on n1, t2 on n2`."""
    by_node = itertools.groupby(sorted(places, key=places.__getitem__), key=places.__getitem__)
    return ", ".join(f"{', '.join(tasks)} on {node}" for node, tasks in by_node)
