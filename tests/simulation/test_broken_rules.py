"""A simulator that finds nothing proves nothing: each rule, broken on purpose, is found by name."""

from collections.abc import Iterator

import pytest
from tests.simulation.broken import BREAKS, Break

from phalanx.core.invariants import InvariantViolated
from phalanx.sim.fault_simulation import simulate_faults
from phalanx.sim.loop import run_virtually

STEPS = 60
SEEDS = 100


def violated(error: BaseException | None) -> Iterator[str]:
    """The names of the invariants that an error, or one of its causes, reports as violated."""
    while error is not None:
        if isinstance(error, InvariantViolated):
            yield from (violation.invariant for violation in error.violations)
        error = error.__cause__


@pytest.mark.filterwarnings("ignore")  # what a broken engine leaves behind is not the point
@pytest.mark.parametrize("break_rule", BREAKS, ids=lambda each: each.__name__)
def test_a_broken_rule_violates_its_invariant(
    break_rule: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    found = BREAKS[break_rule]
    others: list[str] = []
    for seed in (found.first_seed, *range(SEEDS)):
        try:
            run_virtually(simulate_faults(seed, STEPS))
        except Exception as error:
            names = set(violated(error))
            if names & found.invariants:
                return
            others.append(f"seed {seed}: {names or repr(error)}")
    expected = ", ".join(sorted(found.invariants))
    pytest.fail(f"{SEEDS} histories without a violation of {expected}, but with {others}")
