"""Crons on servers that crash: each scheduled time runs once, and one run follows a gap."""

from itertools import pairwise

import pytest

from phalanx.core.model import Cron
from phalanx.sim.cron_simulation import simulate_crons
from phalanx.sim.loop import run_virtually
from phalanx.store import rows


@pytest.mark.parametrize("seed", range(8))
def test_no_scheduled_time_runs_twice_and_the_last_missed_one_runs_late(seed: int) -> None:
    minutes = run_virtually(simulate_crons(seed))
    # There is no leader for at most half a minute, so at most one time in a row is skipped.
    assert max(later - earlier for earlier, later in pairwise(minutes)) <= 2
    assert minutes[-1] - minutes[0] >= 55


def test_a_store_that_forgets_runs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[str, Cron] = {}
    encoded = rows._cron
    monkeypatch.setattr(rows, "_cron", lambda cron: encoded(first.setdefault(cron.key, cron)))
    with pytest.raises(AssertionError, match="ran twice"):
        run_virtually(simulate_crons(1))
