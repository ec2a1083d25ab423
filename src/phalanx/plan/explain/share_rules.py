"""The rule of fair share at work: which one makes a pending gang wait, and when that ends."""

import msgspec
import numpy as np

from phalanx.core.reasons import amount_in_words
from phalanx.core.spec.durations import short_duration
from phalanx.core.time_units import SECOND, Micros
from phalanx.plan.fairshare.demand import settle_shares
from phalanx.plan.fairshare.shares import FairShares
from phalanx.plan.first_gangs import is_overdue
from phalanx.plan.groups import group_of
from phalanx.plan.model import PendingGang
from phalanx.plan.pending import is_starving
from phalanx.plan.placement.amounts import minimum_amounts
from phalanx.plan.state.nodes import EPSILON
from phalanx.plan.state.planner_state import Moment


class LargerThanShare(msgspec.Struct, frozen=True):
    """It needs more at once than its queue, or a queue above it, deserves."""

    queue: str
    resource: str
    want: int
    deserved: int
    used: int  #: by other jobs of the queue
    starves_in: Micros | None  #: None: it is starving

    def __str__(self) -> str:
        want = amount_in_words(self.resource, self.want)
        share = amount_in_words(self.resource, self.deserved)
        larger = f"larger than the share of queue {self.queue}, {share}"
        if self.starves_in is not None:
            after = short_duration(self.starves_in / SECOND)
            return (
                f"{larger}; starts when it finds {want} idle; in {after} the queue deserves the job"
            )
        used = amount_in_words(self.resource, self.used)
        if self.used:
            return f"{larger}; starts when the queue has freed the {used} that it uses"
        return (
            f"{larger}; the queue is empty and deserves the job; starts when it finds {want} free"
        )

    @property
    def remedy(self) -> str:
        return f"raise the quota or the weight of queue {self.queue}, or request less"


class NoShare(msgspec.Struct, frozen=True):
    """Its queue deserves nothing, because other quotas take the whole cluster."""

    queue: str
    resource: str
    want: int
    starves_in: Micros | None  #: None: it is starving
    has_weight: bool

    def __str__(self) -> str:
        want = amount_in_words(self.resource, self.want)
        if not self.has_weight:
            return f"queue {self.queue} has no quota and weight 0; starts when it finds {want} idle"
        without = f"queue {self.queue} has no quota, and other quotas take all {self.resource}"
        if self.starves_in is None:
            return f"{without}; the queue deserves one job; starts when it finds {want} free"
        after = short_duration(self.starves_in / SECOND)
        return f"{without}; starts when it finds {want} idle; in {after} the queue deserves the job"

    @property
    def remedy(self) -> str:
        return f"set a quota for queue {self.queue}"


class ShareInUse(msgspec.Struct, frozen=True):
    """Its queue, or a queue above it, would exceed its share with it."""

    queue: str
    resource: str
    used: int
    deserved: int
    may_exceed: bool  #: it is starving, and within the quota of the queue

    def __str__(self) -> str:
        used = amount_in_words(self.resource, self.used, unit=False)
        share = amount_in_words(self.resource, self.deserved)
        uses = f"uses {used} of the {share} that it deserves"
        if self.used > self.deserved:
            used = amount_in_words(self.resource, self.used)
            share = amount_in_words(self.resource, self.deserved, unit=False)
            uses = f"uses {used}, more than the {share} that it deserves"
        ending = "or other queues leave capacity idle"
        if self.may_exceed:
            ending = "other queues leave capacity idle, or it is due before their jobs"
        return f"queue {self.queue} {uses}; starts when jobs of the queue end, {ending}"

    @property
    def remedy(self) -> str:
        return f"wait for jobs of queue {self.queue} to end, or raise its quota or weight"


class PastMaxWait(msgspec.Struct, frozen=True):
    """It is overdue, so that it comes before all queues."""

    waited: Micros

    def __str__(self) -> str:
        waited = short_duration(self.waited / SECOND)
        goes_first = "the oldest such job of its queue goes before all queues"
        return f"pending for {waited}, longer than max_wait; {goes_first}"

    @property
    def remedy(self) -> str:
        return "wait for jobs to end, or add workers"


ShareRule = LargerThanShare | NoShare | ShareInUse | PastMaxWait


def share_rule(state: Moment, job: str) -> ShareRule | None:
    """The rule that makes a pending gang wait; None if its queue deserves it now."""
    gang = state.pending.gangs.get(job)
    if gang is None:
        return None
    group = group_of(gang, state.pending)
    if gang.since is not None and not group.missing and is_overdue(state, group.members):
        return PastMaxWait(state.now - gang.since)
    shares = _divided(state)
    return _exceeded(state, gang, shares) if shares.is_contended else None


def _divided(state: Moment) -> FairShares:
    """What every queue uses and deserves, without the rules for starving gangs and unused
    shares."""
    shares = FairShares(state.layout, state.table)
    never_start = [b for b in state.pending.buckets.values() if state.never_fits(b) is not None]
    settle_shares(shares, state, never_start, (), ())
    return shares


def _exceeded(state: Moment, gang: PendingGang, shares: FairShares) -> ShareRule | None:
    """The first queue, from the gang's up, whose share does not hold the gang."""
    need = minimum_amounts(gang, state.table)
    starves_in = None
    if not is_starving(state.policy, gang, state.now):
        since = state.now if gang.since is None else gang.since
        starves_in = since + state.policy.starve_after - state.now
    for branch in shares.branches[gang.queue].path():
        above = (branch.used + need > branch.deserved + EPSILON) & (need > 0) & shares.shared
        if branch is shares.root or not above.any():
            continue
        rows = np.flatnonzero(above).tolist()
        row = next((each for each in rows if each in branch.counted_rows), rows[0])
        queue, resource = branch.queue, list(state.table.rows)[row]
        amounts = (need[row], branch.deserved[row], branch.used[row])
        want, deserved, used = (round(float(amount)) for amount in amounts)
        if deserved <= 0 and not branch.quota[row]:
            return NoShare(queue.name, resource, want, starves_in, queue.weight > 0)
        if want > deserved:
            return LargerThanShare(queue.name, resource, want, deserved, used, starves_in)
        may_exceed = starves_in is None and shares.stays_within_quota(branch, need)
        return ShareInUse(queue.name, resource, used, deserved, may_exceed)
    return None
