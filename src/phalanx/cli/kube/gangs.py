"""`phalanx kube gangs`: the gangs of a cluster."""

from typing import TYPE_CHECKING

from phalanx.cli import formatting
from phalanx.cli.exits import Status, end
from phalanx.cli.kube.cluster import AllNamespaces, ClusterAddress, Namespace, ask, with_cluster
from phalanx.cli.output import Json, print_json, print_table_with_texts
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.kube.api.client import ApiClient
    from phalanx.kube.views.gangs import GangView


@with_cluster
def gangs(
    address: ClusterAddress,
    *,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    as_json: Json = False,
) -> None:
    """List gangs: pending ones first, each with its reason. A pod without a gang is a gang of
    one."""

    async def read(client: "ApiClient") -> "tuple[str, list[GangView]]":
        from phalanx.kube.views.cluster_reader import read_gangs  # noqa: PLC0415
        from phalanx.kube.views.gangs import gang_views, missing_namespace  # noqa: PLC0415

        chosen = "" if all_namespaces else namespace or client.connection.namespace
        model = await read_gangs(client, address.scheduler_names, chosen)
        if (missing := missing_namespace(model, chosen)) is not None:
            end(Status.NOT_FOUND, missing)
        return chosen, gang_views(model)

    chosen, views = ask(address, read)
    if as_json:
        print_json(views)
        return
    if not views:
        say(_nothing(chosen, address), err=True)
        return
    headings = ["GANG", "QUEUE", "#PRIORITY", "#MIN", "#BOUND", "STATE", "AGE"]
    rows = [[_name(view, with_namespace=not chosen), *_cells(view)] for view in views]
    reasons = [[_reason(view)] for view in views]
    print_table_with_texts(headings, rows, "REASON", reasons, drop=("PRIORITY", "QUEUE", "MIN"))


def _nothing(namespace: str, address: ClusterAddress) -> str:
    name = address.scheduler_names[0]
    names = " or ".join(address.scheduler_names)
    if not namespace:
        return (
            f"no pods in the cluster have schedulerName {names}; set `schedulerName: {name}` in the"
            " pod template of your jobs"
        )
    return (
        f"no pods in namespace {namespace} have schedulerName {names}; choose a namespace with -n,"
        f" list all with -A, or set `schedulerName: {name}` in the pod template of your jobs"
    )


def _name(view: "GangView", *, with_namespace: bool) -> str:
    return f"{view.namespace}/{view.name}" if with_namespace else view.name


def _reason(view: "GangView") -> str:
    """Why the gang is pending or stopping, and how long ago that was written."""
    if not view.message or view.reason_at is None:
        return view.message
    ago = formatting.age(view.reason_at.isoformat(), formatting.now())
    return f"{view.message} [{ago} ago]"


def _cells(view: "GangView") -> list[str]:
    now = formatting.now()
    created = view.created_at
    return [
        view.queue,
        str(view.priority),
        "?" if view.min_available is None else str(view.min_available),
        f"{view.bound}/{len(view.pods)}",
        view.state,
        "-" if created is None else formatting.age(created.isoformat(), now),
    ]
