"""Crons across leaders that die: each time is run once, and after a gap one makes up for it."""

from itertools import pairwise

import pytest

from phalanx.core.model import Cron
from phalanx.sim.crons import simulate_crons
from phalanx.sim.loop import run_virtually
from phalanx.store import rows


@pytest.mark.parametrize("seed", range(8))
def test_no_time_is_run_twice_and_the_last_that_was_missed_is_made_up_for(seed: int) -> None:
    minutes = run_virtually(simulate_crons(seed))
    # Nobody leads for half a minute at most, so at most one time in a row is passed over.
    assert max(later - earlier for earlier, later in pairwise(minutes)) <= 2
    assert minutes[-1] - minutes[0] >= 55


def test_a_store_that_forgets_what_was_run_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[str, Cron] = {}
    encoded = rows._cron
    monkeypatch.setattr(rows, "_cron", lambda cron: encoded(first.setdefault(cron.key, cron)))
    with pytest.raises(AssertionError, match="run twice"):
        run_virtually(simulate_crons(1))
