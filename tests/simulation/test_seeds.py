"""Clusters with every kind of fault, one per seed; a failing test names its seed."""

import pytest

from phalanx.sim.fault_simulation import simulate_faults
from phalanx.sim.loop import run_virtually

#: Random actions per simulation.
STEPS = 60


@pytest.mark.parametrize("seed", range(120))
def test_a_cluster_with_random_faults_breaks_no_rule(seed: int) -> None:
    run_virtually(simulate_faults(seed, STEPS))


def test_a_seed_always_gives_the_same_simulation() -> None:
    first, second = (run_virtually(simulate_faults(7, STEPS)) for _ in range(2))
    assert first.database.content.records == second.database.content.records
