"""APIs that appear and disappear while the scheduler runs."""

from phalanx.kube.api.discovery import Discovery, ServedResource
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.custom_resources import CUSTOM_RESOURCE_DEFINITIONS, definition, install
from tests.kubernetes.pool import Pool


async def test_an_api_is_found_when_it_is_installed_and_lost_when_it_is_removed(pool: Pool) -> None:
    group = f"{pool.namespace}.phalanx.test"
    calls: list[None] = []
    discovery = Discovery(pool.api, lambda: calls.append(None))
    await discovery.refresh()
    assert discovery.find(group, "gangs") is None
    native = discovery.find("scheduling.k8s.io", "podgroups")
    assert native is not None
    assert (native.version, native.kind, native.has_status) == ("v1alpha2", "PodGroup", True)

    await install(pool.api, definition(group, "Gang"))

    async def is_found() -> bool:
        await discovery.refresh()
        return discovery.find(group, "gangs") is not None

    await eventually(is_found, PATIENCE_S)
    assert discovery.find(group, "gangs") == ServedResource(
        group, "v1alpha1", "gangs", "Gang", is_namespaced=True, has_status=False
    )
    assert calls

    await pool.api.delete(CUSTOM_RESOURCE_DEFINITIONS, f"gangs.{group}")

    async def is_lost() -> bool:
        return not await is_found()

    await eventually(is_lost, PATIENCE_S)
