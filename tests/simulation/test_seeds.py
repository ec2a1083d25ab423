"""Whole clusters from seeds, with every kind of fault. A failure names the seed that replays it."""

import pytest

from phalanx.sim.loop import run_virtually
from phalanx.sim.world import simulate

#: Things that happen in one history.
STEPS = 60


@pytest.mark.parametrize("seed", range(120))
def test_a_cluster_survives_whatever_befalls_it(seed: int) -> None:
    run_virtually(simulate(seed, STEPS))


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = (run_virtually(simulate(7, STEPS)) for _ in range(2))
    assert first.faults.database.records == second.faults.database.records
