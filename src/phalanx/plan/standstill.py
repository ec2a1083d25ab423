"""A standstill: no pending gang fits or may evict others, and every reserved start stays reserved.

Most events of a busy cluster lead to one: a job joins a queue that has no free capacity, or gangs
have started and what is left is too little for the others. A standstill is recognised at a fraction
of the cost of a pass, and its plan is the one that the pass would have made. In doubt a pass is
made.
"""

from collections.abc import Collection, Container, Mapping

from phalanx.core.model import Queue
from phalanx.core.reasons import Reason
from phalanx.plan.decisions import Plan, ReservedStart
from phalanx.plan.explain.reason_index import PendingReasons
from phalanx.plan.explain.shortage import Shortage
from phalanx.plan.fairshare.demand import settle_shares
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.first_gangs import QueueSurvey, deserve_starving, survey
from phalanx.plan.model import TaskRequest
from phalanx.plan.pending import Bucket, is_starving
from phalanx.plan.preemption.preemptor import resources_short
from phalanx.plan.preemption.search import VictimSearch
from phalanx.plan.state.planner_state import Moment

#: Requests, each with the label of the domains one of which must hold its tasks.
_Requests = Collection[tuple[TaskRequest, str | None]]


def plan_in_standstill(state: Moment) -> Plan | None:
    """The plan that decides nothing; None unless the cluster is certainly in a standstill."""
    if not _is_quiet(state):
        return None
    requests = _requests_without_fit(state)
    starts = None if requests is None else _kept_starts(state)
    if requests is None or starts is None:
        return None
    never = state.never_fitting()
    surveyed = survey(state, never)
    serves_none = not starts and _serves_preemptors_only(state, surveyed.overdue, never)
    if not serves_none and not _has_all_reservations(state, starts, surveyed.overdue, never):
        return None
    shares = _shares(state, never, surveyed)
    is_limited = any(state.pending.gangs[s.job].queue in shares.limits.limited for s in starts)
    search = VictimSearch(state, (), shares)
    preemptors = _preemptors(state, never, search)
    if is_limited or (serves_none and preemptors) or _may_evict(state, preemptors, search, shares):
        return None
    return Plan(
        state.now,
        (),
        _reasons(state, requests, never, shares),
        starts,
        unused_shares=state.unused_shares,
    )


def _is_quiet(state: Moment) -> bool:
    """Whether nothing goes on that a pass must look at: timeouts that have ended, tasks that are
    stopping, kept or gathered places, groups, growth, a round of searches for victims, rules of
    queues about what starts, or is moved."""
    pending = state.pending
    under_way = (
        pending.gathering,
        pending.nominated,
        pending.growing,
        pending.grouped,
        state.running.stopping,
        pending.expired(state.now),
        state.policy.share_half_life,
    )
    return (
        not any(under_way)
        and state.cursor.is_at_start
        and not any(_has_rules_of_its_own(queue) for queue in state.queues.values())
    )


def _has_rules_of_its_own(queue: Queue) -> bool:
    return queue.stopped or queue.non_preemptible_within_quota or queue.consolidation


def _requests_without_fit(state: Moment) -> _Requests | None:
    """The requests of all buckets; None if the gangs of a bucket might fit."""
    fits: dict[tuple[TaskRequest, str | None], int] = {}
    for bucket in state.pending.buckets.values():
        key = (bucket.request, bucket.domains)
        most = fits.get(key)
        if most is None:
            most = fits[key] = state.present.most_fit(*key)
        # The need of a gang for which more than the number of tasks decides is 0.
        if bucket.need <= most:
            return None
    return fits.keys()


# Reserved starts


def _kept_starts(state: Moment) -> tuple[ReservedStart, ...] | None:
    """The reserved starts of pending gangs; None if a pass might not keep one of them."""
    pending = state.pending
    starts = tuple(start for start in state.reserved_starts if start.job in pending.gangs)
    return starts if all(_is_kept(state, start) for start in starts) else None


def _is_kept(state: Moment, start: ReservedStart) -> bool:
    pending, table = state.pending, state.table
    gang = pending.gangs[start.job]
    bucket = pending.bucket_of(gang)
    return (
        start.at is not None
        and start.at > state.now
        and bucket is not None
        and bucket.head is gang
        and state.never_fits(bucket) is None
        and all(name in table.index and table.open[table.index[name]] for name in start.nodes)
    )


def _has_all_reservations(
    state: Moment,
    starts: Collection[ReservedStart],
    overdue: Collection[str],
    never: Mapping[Bucket, Reason],
) -> bool:
    """Whether no gang would be reserved a start, or have nodes kept, besides those that are."""
    jobs = {start.job for start in starts}
    if not jobs.issuperset(overdue):
        return False
    soon = state.now + state.policy.plan_every
    if sum((start.at or 0) > soon for start in starts) >= state.policy.heads:
        return True
    buckets = state.pending.buckets.values()
    return all(bucket.head.job in jobs or bucket in never for bucket in buckets)


def _serves_preemptors_only(
    state: Moment, overdue: Collection[str], never: Container[Bucket]
) -> bool:
    """Whether a pass would serve no gang that does not fit, except to evict others for it.

    That is so without the known end of a running gang, which a start could be reserved for, and
    without a starving or overdue gang, which nodes could be kept for.
    """
    if overdue or (state.policy.backfill and state.running.ending):
        return False
    buckets = state.pending.buckets.values()
    heads = (bucket.head for bucket in buckets if bucket not in never)
    return not any(is_starving(state.policy, head, state.now) for head in heads)


# Evictions


def _shares(state: Moment, never: Mapping[Bucket, Reason], surveyed: QueueSurvey) -> FairShares:
    shares = FairShares(state.layout, state.table)
    settle_shares(shares, state, never, (), ())
    deserve_starving(shares, state, surveyed.firsts)
    return shares


def _preemptors(state: Moment, never: Container[Bucket], search: VictimSearch) -> list[Bucket]:
    """The buckets whose gangs may evict others now and might be entitled to a victim."""
    return [
        bucket
        for queue, order in state.in_order().items()
        if any(search.might_find(queue, priority) for priority in order.priorities)
        for _, _, bucket in order.keyed
        if bucket not in never
        and bucket.first.evicts_from is not None
        and bucket.first.evicts_from <= state.now
        and search.might_find(queue, bucket.first.priority)
    ]


def _may_evict(
    state: Moment, preemptors: list[Bucket], search: VictimSearch, shares: FairShares
) -> bool:
    """Whether a gang might find victims, or so many might that they have to take turns."""
    if len(preemptors) > state.policy.searches:
        return True
    for bucket in preemptors:
        minimum, _ = bucket.amounts(state.table)
        short = resources_short(minimum, state.present, shares.shared)
        if search.has_victims((bucket.first,), short):
            return True
    return False


def _reasons(
    state: Moment,
    requests: _Requests,
    never: Mapping[Bucket, Reason],
    shares: FairShares,
) -> PendingReasons:
    reasons = PendingReasons(state.pending.fork())
    for bucket, reason in never.items():
        reasons.of_bucket(bucket, 0, reason)
    domains = {label for _, label in requests if label is not None}
    capacity = (state.present.fork(),)
    limits = shares.limits.remaining()
    reasons.shortage = Shortage(capacity, {r for r, _ in requests}, domains, limits)
    return reasons
