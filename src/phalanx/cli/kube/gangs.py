"""`phalanx kube gangs`: the gangs of a cluster."""

from typing import TYPE_CHECKING

from phalanx.cli import formatting
from phalanx.cli.kube.cluster import AllNamespaces, ClusterAddress, Namespace, ask, with_cluster
from phalanx.cli.output import Json, Narrow, note, print_json, print_table

if TYPE_CHECKING:
    from phalanx.kube.api.client import ApiClient
    from phalanx.kube.views.gangs import GangView

_NARROW = Narrow(cut=("REASON",), drop=("PRIORITY", "QUEUE", "AGE", "MIN"), least=40)


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
        from phalanx.kube.views.gangs import gang_views  # noqa: PLC0415

        chosen = "" if all_namespaces else namespace or client.connection.namespace
        return chosen, gang_views(await read_gangs(client, address.scheduler_names, chosen))

    chosen, views = ask(address, read)
    if as_json:
        print_json(views)
        return
    if not views:
        where = f"in namespace {chosen}" if chosen else "in the cluster"
        names = " or ".join(address.scheduler_names)
        note(f"no pods {where} have schedulerName {names}")
        return
    headings = ["GANG", "QUEUE", "#PRIORITY", "#MIN", "#BOUND", "STATE", "AGE", "REASON"]
    rows = [[_name(view, with_namespace=not chosen), *_cells(view)] for view in views]
    print_table(headings, rows, _NARROW)


def _name(view: "GangView", *, with_namespace: bool) -> str:
    return f"{view.namespace}/{view.name}" if with_namespace else view.name


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
        view.message,
    ]
