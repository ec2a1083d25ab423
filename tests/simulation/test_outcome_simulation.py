"""Submissions to servers that crash, freeze and lose their store: no answer is untrue."""

from collections.abc import Callable
from typing import Any

import pytest

from phalanx.core.invariants import InvariantViolated
from phalanx.engine import writer
from phalanx.engine.errors import NotLeading
from phalanx.sim.invariants import SimulationInvariant
from phalanx.sim.loop import run_virtually
from phalanx.sim.network import CommandOutcome
from phalanx.sim.outcome_simulation import simulate_outcomes

SEEDS = range(6)


def test_a_job_that_was_refused_never_appears_and_an_accepted_one_does() -> None:
    outcomes = [run_virtually(simulate_outcomes(seed)) for seed in SEEDS]
    assert set().union(*outcomes) == set(CommandOutcome)


def a_commit_counts_only_within_the_lease(patch: pytest.MonkeyPatch) -> None:
    original = writer.Writer._commit

    async def commit(self: writer.Writer, turn: Any, answers: Any) -> bool:
        await original(self, turn, answers)
        return False

    patch.setattr(writer.Writer, "_commit", commit)


def an_interrupted_commit_counts_as_not_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writer, "_interrupted", NotLeading)


@pytest.mark.parametrize(
    "break_rule", [a_commit_counts_only_within_the_lease, an_interrupted_commit_counts_as_not_done]
)
def test_an_untrue_answer_is_noticed(
    break_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    with pytest.raises(InvariantViolated, match=SimulationInvariant.REFUSED_JOBS_ARE_NOT_STORED):
        [run_virtually(simulate_outcomes(seed)) for seed in SEEDS]
