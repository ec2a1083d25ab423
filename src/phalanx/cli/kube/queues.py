"""`phalanx kube queues`: the queues of a cluster."""

from typing import TYPE_CHECKING

from phalanx.cli import formatting
from phalanx.cli.kube.cluster import ClusterAddress, Nodes, ask, with_cluster
from phalanx.cli.output import Json, is_wide, print_json, print_table_with_texts
from phalanx.cli.queues import queue_tree

if TYPE_CHECKING:
    from phalanx.kube.api.client import ApiClient
    from phalanx.kube.views.queues import KubeQueueView


@with_cluster
def queues(address: ClusterAddress, *, nodes: Nodes = "", as_json: Json = False) -> None:
    """List queues as a tree: quota, limit, usage, fair share, and gangs."""

    async def read(client: "ApiClient") -> "list[KubeQueueView]":
        from phalanx.host.clock import wall_clock  # noqa: PLC0415
        from phalanx.kube.views.cluster_reader import read_cluster  # noqa: PLC0415
        from phalanx.kube.views.queues import queue_views  # noqa: PLC0415

        model = await read_cluster(client, address.scheduler_names, nodes)
        return queue_views(model, wall_clock())

    views = ask(address, read)
    if as_json:
        print_json(views)
        return
    tree = list(queue_tree(views))
    counts = [_counts(depth, view) for depth, view in tree]
    headings = ["QUEUE", "#RUNNING", "#PENDING", "#WEIGHT"]
    if is_wide():
        headings += [name.upper() for name in _AMOUNTS]
        rows = [[*count, *_amounts(view)] for count, (_, view) in zip(counts, tree, strict=True)]
        texts = [["; ".join(_remarks(view))] for _, view in tree]
        print_table_with_texts(headings, rows, "NOTE", texts)
    else:
        print_table_with_texts(headings, counts, "", [[_below(view)] for _, view in tree])


_AMOUNTS = ("used", "deserved", "quota", "limit")


def _counts(depth: int, view: "KubeQueueView") -> list[str]:
    return ["  " * depth + view.name, str(view.running), str(view.pending), str(view.weight)]


def _amounts(view: "KubeQueueView") -> list[str]:
    return [formatting.amounts(each) for each in (view.used, view.deserved, view.quota, view.limit)]


def _below(view: "KubeQueueView") -> str:
    """What stands below a queue on a narrow terminal."""
    named = zip(_AMOUNTS, _amounts(view), strict=True)
    parts = [f"{name} {amount}" for name, amount in named if amount != "-"]
    return "; ".join(parts + _remarks(view))


def _remarks(view: "KubeQueueView") -> list[str]:
    problem = [f"cannot be used: {view.problem}"] if view.problem else []
    return [*problem, *view.notes]
