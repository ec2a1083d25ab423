"""`phalanx kube queues`: the queues of a cluster."""

from typing import TYPE_CHECKING

from phalanx.cli import formatting
from phalanx.cli.kube.cluster import ClusterAddress, Nodes, ask, with_cluster
from phalanx.cli.output import Json, Narrow, print_json, print_table
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
    headings = ["QUEUE", "#RUNNING", "#PENDING", "USED", "DESERVED", "QUOTA", "LIMIT", "#WEIGHT"]
    rows = [_row(depth, view) for depth, view in queue_tree(views)]
    if any(view.problem for view in views):
        headings.append("PROBLEM")
        for row, (_, view) in zip(rows, queue_tree(views), strict=True):
            row.append(view.problem or "")
    cut = ("USED", "DESERVED", "QUOTA", "LIMIT", "PROBLEM")
    print_table(headings, rows, Narrow(cut=cut, drop=("WEIGHT", "LIMIT")))


def _row(depth: int, view: "KubeQueueView") -> list[str]:
    amounts = (view.used, view.deserved, view.quota, view.limit)
    return [
        "  " * depth + view.name,
        str(view.running),
        str(view.pending),
        *(formatting.amounts(each) for each in amounts),
        str(view.weight),
    ]
