"""Which workers are lost, which are only late, and when the loss brake engages."""

from types import SimpleNamespace
from typing import Any, cast

from phalanx.core.events import Gone
from phalanx.core.model import Residue
from phalanx.engine.liveness import Liveness
from phalanx.engine.loss_detection import _declare_silent
from phalanx.engine.settings import EngineSettings

SETTINGS = EngineSettings(lost_after_s=30, brake_count=10, brake_share=0.2, brake_duration_s=300)


def heard_at_zero(*workers: str) -> Liveness:
    liveness = Liveness(SETTINGS, 0.0)
    for worker in workers:
        liveness.hear(worker, 0.0)
    return liveness


def many(count: int) -> list[str]:
    return [f"w{n}" for n in range(count)]


def test_a_worker_that_is_silent_for_too_long_is_lost_once() -> None:
    liveness = heard_at_zero("a", "b")
    liveness.hear("b", 20.0)
    assert liveness.take_lost(29.9) == []
    assert liveness.take_lost(30.0) == ["a"]
    assert liveness.take_lost(31.0) == []
    assert liveness.take_lost(50.0) == ["b"]


def test_a_lost_worker_that_is_heard_can_be_lost_again() -> None:
    liveness = heard_at_zero("a")
    liveness.take_lost(30.0)
    liveness.hear("a", 40.0)
    assert liveness.next_deadline() == 70.0
    assert liveness.take_lost(70.0) == ["a"]


def test_a_pause_of_the_server_extends_every_deadline_by_its_length() -> None:
    liveness = heard_at_zero("a")
    liveness.add_pause(15.0)
    assert liveness.take_lost(44.9) == []
    assert liveness.take_lost(45.0) == ["a"]


def test_losing_a_large_part_at_once_engages_the_brake() -> None:
    liveness = heard_at_zero(*many(20))
    assert liveness.take_lost(30.0) == []
    assert liveness.is_braked
    assert liveness.next_deadline() == 330.0


def test_ten_are_not_many_and_neither_is_a_fifth() -> None:
    assert len(heard_at_zero(*many(10)).take_lost(30.0)) == 10
    large = heard_at_zero(*many(100))
    for worker in many(100)[20:]:
        large.hear(worker, 20.0)
    assert len(large.take_lost(30.0)) == 20


def test_no_worker_is_lost_under_the_brake_and_the_silent_ones_are_afterwards() -> None:
    liveness = heard_at_zero(*many(20), "late")
    liveness.hear("late", 25.0)
    liveness.take_lost(30.0)
    assert liveness.take_lost(55.0) == []
    liveness.hear("w0", 310.0)
    lost = liveness.take_lost(330.0)
    assert sorted(lost) == sorted([*many(20)[1:], "late"])
    assert liveness.take_lost(340.0) == ["w0"]


def test_an_operator_releases_the_brake() -> None:
    liveness = heard_at_zero(*many(20))
    liveness.take_lost(30.0)
    liveness.release_brake()
    assert sorted(liveness.take_lost(31.0)) == sorted(many(20))
    assert not liveness.is_braked


def test_losses_that_trickle_in_count_together() -> None:
    liveness = heard_at_zero(*many(20))
    for n, worker in enumerate(many(20)):
        liveness.hear(worker, n / 10)
    lost = [worker for tenth in range(20) for worker in liveness.take_lost(30.05 + tenth / 10)]
    assert len(lost) == 10
    assert liveness.is_braked


def test_a_forgotten_worker_is_not_lost() -> None:
    liveness = heard_at_zero("a")
    liveness.forget("a")
    assert liveness.take_lost(30.0) == []


def test_forgotten_workers_do_not_engage_the_brake() -> None:
    liveness = heard_at_zero(*many(20), "dies", "lives")
    for worker in many(20):
        liveness.forget(worker)
    liveness.hear("lives", 29.0)
    assert liveness.take_lost(30.0) == ["dies"]
    assert not liveness.is_braked


def test_leaving_workers_are_lost_on_time_and_do_not_engage_the_brake() -> None:
    leaving = set(many(20))
    liveness = heard_at_zero(*many(20), "dies", "lives")
    liveness.hear("lives", 29.0)
    lost = liveness.take_lost(30.0, lambda worker: worker not in leaving)
    assert sorted(lost) == sorted([*leaving, "dies"])
    assert not liveness.is_braked


def test_leaving_workers_do_not_add_to_later_losses() -> None:
    leaving = set(many(20))
    liveness = heard_at_zero(*many(20))
    for worker in ("a", "b"):
        liveness.hear(worker, 5.0)
    assert len(liveness.take_lost(30.0, lambda worker: worker not in leaving)) == 20
    assert sorted(liveness.take_lost(35.0)) == ["a", "b"]


def test_leaving_workers_are_lost_on_time_under_the_brake() -> None:
    liveness = heard_at_zero(*many(20))
    liveness.take_lost(30.0)
    liveness.hear("leaving", 40.0)
    assert liveness.take_lost(70.0, lambda worker: worker != "leaving") == ["leaving"]
    assert liveness.is_braked


def test_a_silent_attempt_of_a_worker_that_is_not_known_does_not_end_the_leader() -> None:
    attempt = ("j-1.0", 1)
    applied: list[object] = []
    cluster = SimpleNamespace(residues={attempt: Residue(*attempt, "w", since=0)}, nodes={})
    turn = SimpleNamespace(cluster=cluster, apply=applied.append)
    _declare_silent(cast("Any", turn), attempt)
    assert applied == [Gone("w", *attempt)]
