"""Who is lost, who is only late, and when so many are that nobody is believed to be."""

from phalanx.engine.liveness import Liveness
from phalanx.engine.settings import EngineSettings

SETTINGS = EngineSettings(lost_after_s=30, brake_count=10, brake_share=0.2, brake_hold_s=300)


def attending(*workers: str) -> Liveness:
    attendance = Liveness(SETTINGS, 0.0)
    for worker in workers:
        attendance.hear(worker, 0.0)
    return attendance


def many(count: int) -> list[str]:
    return [f"w{n}" for n in range(count)]


def test_a_worker_that_is_silent_for_too_long_is_lost_once() -> None:
    attendance = attending("a", "b")
    attendance.hear("b", 20.0)
    assert attendance.take_lost(29.9) == []
    assert attendance.take_lost(30.0) == ["a"]
    assert attendance.take_lost(31.0) == []
    assert attendance.take_lost(50.0) == ["b"]


def test_a_lost_worker_that_is_heard_can_be_lost_again() -> None:
    attendance = attending("a")
    attendance.take_lost(30.0)
    attendance.hear("a", 40.0)
    assert attendance.next_deadline() == 70.0
    assert attendance.take_lost(70.0) == ["a"]


def test_a_stall_extends_every_deadline_by_its_length() -> None:
    attendance = attending("a")
    attendance.stalled(15.0)
    assert attendance.take_lost(44.9) == []
    assert attendance.take_lost(45.0) == ["a"]


def test_losing_a_large_part_at_once_pulls_the_brake() -> None:
    attendance = attending(*many(20))
    assert attendance.take_lost(30.0) == []
    assert attendance.is_braked
    assert attendance.next_deadline() == 330.0


def test_ten_are_not_many_and_neither_is_a_fifth() -> None:
    assert len(attending(*many(10)).take_lost(30.0)) == 10
    large = attending(*many(100))
    for worker in many(100)[20:]:
        large.hear(worker, 20.0)
    assert len(large.take_lost(30.0)) == 20


def test_while_braked_nobody_is_lost_and_then_those_that_are_still_silent() -> None:
    attendance = attending(*many(20), "late")
    attendance.hear("late", 25.0)
    attendance.take_lost(30.0)
    assert attendance.take_lost(55.0) == []
    attendance.hear("w0", 310.0)
    lost = attendance.take_lost(330.0)
    assert sorted(lost) == sorted([*many(20)[1:], "late"])
    assert attendance.take_lost(340.0) == ["w0"]


def test_an_operator_lets_the_brake_go() -> None:
    attendance = attending(*many(20))
    attendance.take_lost(30.0)
    attendance.release_brake()
    assert sorted(attendance.take_lost(31.0)) == sorted(many(20))
    assert not attendance.is_braked


def test_losses_that_trickle_in_are_many_together() -> None:
    attendance = attending(*many(20))
    for n, worker in enumerate(many(20)):
        attendance.hear(worker, n / 10)
    lost = [worker for tenth in range(20) for worker in attendance.take_lost(30.05 + tenth / 10)]
    assert len(lost) == 10
    assert attendance.is_braked


def test_who_is_forgotten_is_not_lost() -> None:
    attendance = attending("a")
    attendance.forget("a")
    assert attendance.take_lost(30.0) == []
