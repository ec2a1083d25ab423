"""A simulator that finds nothing proves nothing: each rule, broken on purpose, is found."""

import pytest
from tests.simulation.broken import BREAKS, Break

from phalanx.sim.fault_simulation import simulate_faults
from phalanx.sim.loop import run_virtually

STEPS = 60
SEEDS = 100


@pytest.mark.filterwarnings("ignore")  # what a broken engine leaves behind is not the point
@pytest.mark.parametrize("break_rule", BREAKS, ids=lambda each: each.__name__)
def test_a_broken_rule_is_noticed(break_rule: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    break_rule(monkeypatch)
    for seed in range(SEEDS):
        try:
            run_virtually(simulate_faults(seed, STEPS))
        except Exception:
            return
    pytest.fail(f"{SEEDS} simulations did not notice the broken rule {break_rule.__name__}")
