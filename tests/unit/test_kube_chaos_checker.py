"""The checker of `make kube-chaos` finds every violation."""

from typing import Any

import pytest
from chaos.kubernetes.checker import ApiHistory
from chaos.kubernetes.gangs import GANG, WantedGang
from tests.kube_objects import kube_pod

from phalanx.kube.api.reflector import Change
from phalanx.kube.objects.pod import KubePod

PAIR = WantedGang("g", 2, 1, "low", is_koordinator=False)


def member(number: int = 0, gang: str = "g", node: str = "", **fields: Any) -> KubePod:
    annotations = fields.pop("annotations", {})
    if node:
        annotations |= {"phalanx.dev/round": fields.pop("round", f"{gang}/2/2")}
    labels = {GANG: gang}
    return kube_pod(
        f"{gang}-{number}", labels=labels, annotations=annotations, node=node, gpu=1, **fields
    )


def victim(**fields: Any) -> KubePod:
    mark = {"phalanx.dev/preempted-by": "default/high"}
    return member(0, "low", "n", round="low/1/1", annotations=mark, **fields)


class Story:
    """A history that a test tells pod by pod."""

    def __init__(self) -> None:
        self.history = ApiHistory({"n": 2, "m": 2}, partial_s=10)

    def put(self, *pods: KubePod, at_s: float = 0.0) -> None:
        self.history.take([Change(None, pod) for pod in pods], at_s)

    def remove(self, pod: KubePod) -> None:
        self.history.take([Change(pod, None)], 0.0)

    def rules(self) -> set[str]:
        return {each.rule for each in self.history.violations}

    def missing(self, *gangs: WantedGang) -> set[str]:
        return {each.rule for each in self.history.unsettled(gangs, ["n", "m"])}


def test_a_gang_that_is_bound_whole_violates_nothing() -> None:
    story = Story()
    story.put(member(0), member(1))
    story.put(member(0, node="n"))
    story.put(member(1, node="m"), at_s=9.0)
    story.history.check_partial(100.0)
    assert (story.rules(), story.missing(PAIR)) == (set(), set())
    assert (story.history.binds, story.history.rounds) == (2, 1)


def test_a_gang_that_stays_bound_in_part_is_a_violation() -> None:
    story = Story()
    story.put(member(0, node="n"), member(1))
    assert story.history.partial_rounds() == 1
    story.history.check_partial(10.0)
    assert story.rules() == set()
    story.history.check_partial(10.1)
    assert story.rules() == {"whole-gangs"}
    assert story.missing(PAIR) == {"whole-gangs"}


def test_a_gang_that_a_later_round_completes_is_whole() -> None:
    story = Story()
    story.put(member(0, node="n"), member(1))
    story.put(member(1, node="m", round="later/1/1"))
    story.history.check_partial(100.0)
    assert (story.rules(), story.missing(PAIR), story.history.partial_rounds()) == (set(), set(), 0)


def test_a_gang_that_has_lost_a_member_may_stay_in_part() -> None:
    story = Story()
    story.put(member(0, node="n"), member(1))
    story.remove(member(1))
    story.history.check_partial(100.0)
    assert story.rules() == set()


def test_the_rest_of_a_gang_of_which_a_pod_was_evicted_must_follow() -> None:
    evicted = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    story = Story()
    story.put(member(0, node="n"), member(1, node="m"))
    story.remove(member(1, node="m", status=evicted))
    story.put(member(1, uid="new"))
    story.history.check_partial(10.0)
    assert (story.rules(), story.missing(PAIR)) == (set(), {"whole-gangs"})
    story.history.check_partial(10.1)
    assert story.rules() == {"whole-gangs"}


@pytest.mark.parametrize(("is_koordinator", "rules"), [(True, {"settled"}), (False, set())])
def test_what_a_gang_has_lost_is_placed_if_running_pods_count(
    is_koordinator: bool, rules: set[str]
) -> None:
    story = Story()
    story.put(member(0, node="n"), member(1, node="m"))
    story.remove(member(1, node="m"))
    story.put(member(1, uid="new"))
    assert story.missing(PAIR._replace(is_koordinator=is_koordinator)) == rules
    story.put(member(0, "other", "n", round="o/3/3"))
    story.put(*(member(n, "other", "m", round="o/3/3") for n in (1, 2)))
    other = WantedGang("other", 3, 1, "low", is_koordinator=True)
    assert story.missing(PAIR._replace(is_koordinator=is_koordinator), other) == set()


def test_a_node_with_too_many_pods_is_a_violation() -> None:
    story = Story()
    story.put(*(member(number, node="n", round="r/3/3") for number in range(2)))
    assert story.rules() == set()
    story.put(member(2, node="n", round="r/3/3"))
    assert story.rules() == {"capacity"}


def test_a_pod_that_moves_is_a_violation() -> None:
    story = Story()
    story.put(member(node="n"))
    story.put(member(node="m"))
    assert story.rules() == {"bound-once"}


def test_a_bind_without_a_round_or_in_the_round_of_another_gang_is_a_violation() -> None:
    story = Story()
    story.put(kube_pod("p", node="n"))
    assert story.rules() == {"rounds"}
    story = Story()
    story.put(member(node="n"), member(gang="h", node="n", round="g/2/2"))
    assert story.rules() == {"rounds"}


def test_a_gang_that_fits_and_stays_pending_is_not_settled() -> None:
    story = Story()
    assert story.missing(PAIR) == {"settled"}
    story.put(member(0), member(1))
    assert story.missing(PAIR) == {"settled"}
    others = [member(n, "h", node, round=f"{node}/2/2") for n, node in enumerate("nnmm")]
    story.put(*others)
    assert story.missing(PAIR, PAIR._replace(name="h", size=4)) == set()


def evicted(*after: KubePod) -> Story:
    story = Story()
    story.put(member(gang="high"), member(0, "low", "n", round="low/1/1"))
    story.put(victim(terminating=True))
    story.remove(victim(terminating=True))
    story.put(*after)
    return story


def test_an_eviction_that_nothing_uses_is_a_violation() -> None:
    assert [each.rule for each in evicted().history.unused_evictions()] == ["evictions-are-used"]


def test_an_eviction_that_the_preemptor_or_another_pod_uses_is_none() -> None:
    used = evicted(member(gang="high", node="m", round="h/1/1"))
    taken = evicted(*(member(n, "x", "n", round="x/2/2") for n in range(2)))
    deleted = evicted()
    deleted.history.deleted.add("high")
    for story in (used, taken, deleted):
        assert len(story.history.evictions) == 1
        assert story.history.unused_evictions() == []
