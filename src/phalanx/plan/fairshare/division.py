"""Division of the cluster among the queues: quotas first, the rest by weighted dominant shares.

The division goes from the root down. It depends on the demand of each queue, which is what it uses
and requests together, so placing or evicting a gang does not change it.
"""

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueBranch, QueueLayout, QueueTree
from phalanx.plan.state.nodes import EPSILON, Bools, Floats, Ints


def divide(tree: QueueTree, capacity: Floats, shared: Bools) -> None:
    """Set `deserved` and `counted_rows` of every branch. `shared` is the mask of the resources that
    count for the dominant share of a queue.

    Nothing is computed if all queues demand as much as in the last division.
    """
    layout = tree.layout
    for child in tree.below(tree.root):
        _add_up(tree, child)
    tree.root.deserved = capacity
    demands = np.minimum(tree.used + tree.requested, layout.limits)
    inputs = (demands.tobytes(), capacity.tobytes(), shared.tobytes())
    if layout.last_division is None or layout.last_division[0] != inputs:
        deserved, counted = np.zeros_like(demands), [layout.shared_rows] * len(demands)
        for parent, children in layout.below.items():
            available = capacity if parent is None else deserved[parent]
            deserved[children], is_enough = _divided(
                layout, children, available, demands[children], shared
            )
            if contended := np.flatnonzero(shared & ~is_enough).tolist():
                for child in children.tolist():
                    counted[child] = contended
        layout.last_division = (inputs, deserved, counted)
    _, divided, counted = layout.last_division
    tree.deserved[:] = divided
    for branch, share, rows, demand in zip(
        tree.branches.values(), divided, counted, demands, strict=True
    ):
        branch.divided, branch.counted_rows, branch.settled_demand = share, rows, demand


def _add_up(tree: QueueTree, branch: QueueBranch) -> None:
    """Add the requests of the children, within their limits, to the parent."""
    for child in tree.below(branch):
        _add_up(tree, child)
        branch.requested += np.maximum(child.demand - child.used, 0.0)


def _divided(
    layout: QueueLayout, children: Ints, available: Floats, demands: Floats, shared: Bools
) -> tuple[Floats, Bools]:
    """What each child of a queue deserves of what is available to that queue, and the mask of the
    resources of which there is enough for all children.

    Each child is granted its quota as far as it demands it. Quotas that exceed what is available
    are scaled down in proportion. The rest is divided so that the children have equal weighted
    dominant shares of it; what that leaves of a resource is divided by weight. Of a resource that
    its quota does not name, a child deserves its whole demand as long as there is enough for all
    children: a quota in GPUs does not make a queue wait for plentiful CPU.
    """
    weights, is_enough = layout.weights[children], demands.sum(axis=0) <= available + EPSILON
    if (all_to_one := _all_to_one(available, weights, demands)) is not None:
        return all_to_one, is_enough
    quotas, has_quota = layout.quotas[children], layout.has_quotas[children]
    granted = np.minimum(quotas, demands)
    for row in np.flatnonzero(granted.sum(axis=0) > available).tolist():
        granted[:, row] = water_fill(available[row], quotas[:, row], granted[:, row])
    unmet = demands - granted
    # Of one resource, equal dominant shares are what the division by weight gives.
    if np.count_nonzero(shared & (unmet > EPSILON).any(axis=0)) > 1:
        rest = np.maximum(available - granted.sum(axis=0), 0.0)
        granted[:, shared] += equal_dominant_shares(rest[shared], weights, unmet[:, shared])
    left = available - granted.sum(axis=0)
    for row in np.flatnonzero(left > EPSILON).tolist():
        granted[:, row] += water_fill(left[row], weights, demands[:, row] - granted[:, row])
    unnamed = has_quota.any(axis=1, keepdims=True) & ~has_quota
    return np.where(unnamed & is_enough, demands, granted), is_enough


def _all_to_one(available: Floats, weights: Floats, demands: Floats) -> Floats | None:
    """What each child deserves if at most one of them demands anything; None if several do, or if
    its weight limits the child to its quota."""
    demanding = np.flatnonzero(demands.any(axis=1))
    if len(demanding) > 1 or not (weights[demanding] > 0).all():
        return None
    return np.minimum(demands, available)


def equal_dominant_shares(amounts: Floats, weights: Floats, demands: Floats) -> Floats:
    """Divide amounts of several resources so that all parts have equal weighted dominant shares.

    The dominant share of a part is the largest ratio of what it gets of a resource to the amount
    of it. Every part gets the resources in the proportions of its demand (one line of `demands`),
    and grows until its demand is met or a resource that it demands is used up.
    """
    wanted = demands > EPSILON
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(wanted & (amounts > EPSILON), demands / amounts, 0.0)
        dominant = ratios.max(axis=1, initial=0.0)  # of no resource in a cluster without workers
        # The level of weighted dominant shares at which the demand of each part is met.
        levels = np.where(weights > 0, dominant / weights, 0.0)
    parts = np.zeros_like(demands)
    growing = (levels > 0) & ~wanted[:, amounts <= EPSILON].any(axis=1)
    while growing.any():
        left = amounts - parts.sum(axis=0)
        level, row = _first_used_up(left, levels[growing], demands[growing])
        stopped = growing if row is None else growing & wanted[:, row]
        part_of_demand = np.minimum(level / levels[stopped], 1.0)
        parts[stopped] = demands[stopped] * part_of_demand[:, None]
        growing = growing & ~stopped
    return parts


def _first_used_up(amounts: Floats, levels: Floats, demands: Floats) -> tuple[float, int | None]:
    """The level of weighted dominant shares at which the first resource is used up, and its row.

    Infinite, and None, if all demands can be met. `levels` are those at which each of them is.
    """
    order = np.argsort(levels, kind="stable")
    levels, demands = levels[order], demands[order]
    # For each level: what the parts whose demand is met before it have, and how fast others grow.
    met = np.cumsum(demands, axis=0) - demands
    growth = np.cumsum((demands / levels[:, None])[::-1], axis=0)[::-1]
    exceeded = (met + growth * levels[:, None] > amounts + EPSILON).any(axis=1)
    if not exceeded.any():
        return np.inf, None
    first = int(np.argmax(exceeded))
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = np.where(growth[first] > 0, (amounts - met[first]) / growth[first], np.inf)
    row = int(np.argmin(reached))
    return max(float(reached[row]), 0.0), row


def water_fill(amount: float, weights: Floats, demands: Floats) -> Floats:
    """Divide an amount by weight so that no part exceeds its demand.

    What a part does not need is divided again among the others.
    """
    parts = np.zeros(len(weights))
    unfilled = (weights > 0) & (demands > EPSILON)
    while amount > EPSILON and unfilled.any():
        proportional = amount * weights * unfilled / (weights * unfilled).sum()
        added = np.minimum(proportional, demands - parts) * unfilled
        parts += added
        amount -= float(added.sum())
        filled = unfilled & (demands - parts <= EPSILON)
        if not filled.any():
            break
        unfilled &= ~filled
    return parts
