"""`phalanx kube plan`: what the planner would do with manifests on the cluster as it is."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.files import about, contents
from phalanx.cli.kube.cluster import ClusterAddress, Namespace, Nodes, ask, with_cluster
from phalanx.cli.kube.why import print_forecast
from phalanx.cli.output import Json, Narrow, print_json, print_table, warn
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.kube.api.client import ApiClient
    from phalanx.kube.views.forecast import GangForecast
    from phalanx.kube.views.manifest_pods import ManifestObjects

File = Annotated[
    str,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="Manifests: pods, Jobs, Deployments, jobs of Kubeflow and Volcano, PodGroups, Queues;"
        " - reads standard input.",
    ),
]


class Planned(NamedTuple):
    forecasts: "list[GangForecast]"
    warnings: list[str]


@with_cluster
def plan(
    address: ClusterAddress,
    *,
    file: File,
    namespace: Namespace = None,
    nodes: Nodes = "",
    as_json: Json = False,
) -> None:
    """Show what the scheduler would do with manifests on the cluster as it is.

    Nothing is created: one pod of each kind is sent to the API server as a dry run, which needs
    the right to create pods.
    """
    from phalanx.core.errors import Invalid  # noqa: PLC0415

    data = contents(file)

    async def read(client: "ApiClient") -> Planned:
        from phalanx.kube.views.manifest_pods import manifest_objects  # noqa: PLC0415

        objects = manifest_objects(data, namespace or client.connection.namespace)
        return await _plan(client, address, objects, nodes)

    try:
        planned = ask(address, read)
    except Invalid as invalid:
        end(Status.USAGE, *(about(file, str(problem)) for problem in invalid.problems))
    if as_json:
        print_json(planned._asdict())
        return
    for warning in planned.warnings:
        warn(warning)
    for forecast in planned.forecasts:
        _print(forecast)
    if not planned.forecasts:
        say("the manifests have no pods")


async def _plan(
    client: "ApiClient", address: ClusterAddress, objects: "ManifestObjects", nodes: str
) -> Planned:
    from phalanx.host.clock import wall_clock  # noqa: PLC0415
    from phalanx.kube.views.cluster_reader import read_cluster  # noqa: PLC0415
    from phalanx.kube.views.forecast import gang_forecasts  # noqa: PLC0415
    from phalanx.kube.views.manifest_pods import put_objects  # noqa: PLC0415
    from phalanx.plan.cycle import plan as make_plan  # noqa: PLC0415

    model = await read_cluster(client, address.scheduler_names, nodes)
    pods, warnings = await put_objects(client, model, objects, address.scheduler_names[0])
    model.refresh()
    now = wall_clock()
    made = make_plan(model.state, now)
    found = (model.gangs.gang_of(pod.metadata.uid) for pod in pods)
    gangs = {gang.job: gang for gang in found if gang is not None}
    forecasts = [each for g in gangs.values() for each in gang_forecasts(model, made, g, now)]
    return Planned(forecasts, warnings)


def _print(forecast: "GangForecast") -> None:
    print_forecast(forecast.name, forecast)
    if len(forecast.placements) > 1:
        print_table(["POD", "NODE"], sorted(forecast.placements.items()), Narrow())
