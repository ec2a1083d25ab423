"""Division of the cluster among the queues: quota first, the rest by weight, per resource.

The division goes from the root down. It depends on the demand of each queue, which is what it uses
and requests together, so placing or evicting a gang does not change it.
"""

import numpy as np

from phalanx.plan.fairshare.queue_tree import QueueBranch, QueueTree
from phalanx.plan.state.nodes import EPSILON, Floats


def divide(tree: QueueTree, capacity: Floats) -> None:
    """Set `deserved` of every branch."""
    for child in tree.root.children:
        _add_up(child)
    tree.root.deserved = capacity
    _divide_among_children(tree.root)


def _add_up(branch: QueueBranch) -> None:
    """Add the requests of the children, within their limits, to the parent.

    A parent without a quota of its own has the sum of its children's quotas.
    """
    own_quota = bool(branch.queue.quota)
    for child in branch.children:
        _add_up(child)
        branch.requested += np.maximum(child.demand - child.used, 0.0)
        if not own_quota:
            branch.quota += child.quota
            branch.has_quota |= child.has_quota


def _divide_among_children(branch: QueueBranch) -> None:
    """Grant each child its quota as far as it demands it, then share the rest by weight.

    Quotas that exceed what the parent deserves are scaled down in proportion. Of a resource that
    its quota does not name, a child deserves its whole demand as long as there is enough for all
    children: a quota in GPUs does not make a queue wait for plentiful CPU.
    """
    children = branch.children
    if not children:
        return
    available = branch.deserved
    demands = np.array([child.demand for child in children])
    quotas = np.array([child.quota for child in children])
    granted = np.minimum(quotas, demands)
    weights = np.array([float(child.queue.weight) for child in children])
    has_quota = np.array([child.has_quota for child in children])
    unnamed = has_quota.any(axis=1, keepdims=True) & ~has_quota
    for row in range(len(available)):
        rest = available[row] - granted[:, row].sum()
        if rest < 0:
            granted[:, row] = water_fill(available[row], quotas[:, row], granted[:, row])
        granted[:, row] += water_fill(rest, weights, demands[:, row] - granted[:, row])
        if demands[:, row].sum() <= available[row] + EPSILON:
            granted[:, row] = np.where(unnamed, demands, granted)[:, row]
    for child, share in zip(children, granted, strict=True):
        child.deserved = share
        _divide_among_children(child)


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
