"""The order of the pending gangs of each queue, as it is kept while gangs come and go."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.time_units import MINUTE, Micros
from phalanx.plan.model import PendingGang, PlannerPolicy, RoleRequest, TaskRequest
from phalanx.plan.pending import PendingGangs

POLICY = PlannerPolicy()

sizes = st.integers(1, 3)
changes = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "order", "fork"]),
        st.integers(0, 7),  # the number of a job, or the minutes of a time
        st.sampled_from(["a", "b"]),
        sizes,
    ),
    max_size=30,
)


def pending_gang(number: int, queue: str, size: int, cpu: int = 1000) -> PendingGang:
    role = RoleRequest("worker", TaskRequest((("cpu", cpu),)), tuple(range(size)), size)
    created: Micros = number * MINUTE
    job = f"j-{number}"
    return PendingGang(
        *(job, job, 0, queue, 0, created), size=size, roles=(role,), need=size, since=created
    )


def heads(pending: PendingGangs, now: Micros) -> dict[str, list[str]]:
    """By queue: the first gang of each bucket, in order."""
    orders = pending.in_order(POLICY, now)
    return {queue: [b.head.job for _, _, b in order.keyed] for queue, order in orders.items()}


def expected_heads(pending: PendingGangs, now: Micros) -> dict[str, list[str]]:
    """The same, computed from the gangs alone."""
    fresh = PendingGangs(shortest_first=True)
    for gang in pending.gangs.values():
        fresh.put(gang)
    return heads(fresh, now)


@given(changes, st.integers(0, 30))
def test_the_order_that_is_kept_is_that_of_the_gangs(
    changes: list[tuple[str, int, str, int]], minutes: int
) -> None:
    pending = PendingGangs(shortest_first=True)
    forks: list[tuple[PendingGangs, dict[str, list[str]]]] = []
    now = minutes * MINUTE
    for change, number, queue, size in changes:
        job = f"j-{number}"
        if change == "put":
            pending.put(pending_gang(number, queue, size))
        elif change == "remove" and job in pending.gangs:
            pending.remove(job)
        elif change == "order":
            at = number * 2 * MINUTE
            assert heads(pending, at) == expected_heads(pending, at)
        elif change == "fork":
            forks.append((pending.fork(), expected_heads(pending, now)))
    assert heads(pending, now) == expected_heads(pending, now)
    for fork, expected in forks:
        assert heads(fork, now) == expected


def test_requests_of_gangs_that_are_gone_are_forgotten() -> None:
    pending = PendingGangs(shortest_first=True)
    for number in range(100):
        pending.put(pending_gang(number, "a", 1, cpu=1000 + number))
        pending.in_order(POLICY, 0)
        pending.remove(f"j-{number}")
    pending.in_order(POLICY, 0)
    assert len(pending._fit_keys) <= 2
