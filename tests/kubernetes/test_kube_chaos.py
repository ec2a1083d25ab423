"""A few of the faults of `make kube-chaos`: killed schedulers, and nodes that come and go."""

from pathlib import Path

from chaos.kubernetes.run import KubeRun

from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.pool import Pool


async def test_killed_schedulers_leave_no_gang_in_part_and_use_what_they_evict(
    api_server: ApiServer, pool: Pool, tmp_path: Path
) -> None:
    result = await KubeRun(api_server, pool, tmp_path, seed=5).kill_schedulers(3)
    assert result.violations == []
    assert (len(result.takeovers), result.binds > 0) == (3, True)


async def test_gangs_and_nodes_come_and_go(
    api_server: ApiServer, pool: Pool, tmp_path: Path
) -> None:
    result = await KubeRun(api_server, pool, tmp_path, seed=6).churn(4.0)
    assert result.violations == []
    assert result.binds > 0
