"""`python -m chaos.kubernetes --kills 100` or `--minutes 10`: a scheduler with faults on a real API
server, and a verdict. Exits with status 1 if a rule was violated."""

import argparse
import asyncio
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from tests.kubernetes.binaries import CONTROL_PLANE, CannotBuildError, built
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.pool import Pool

from chaos.kubernetes.run import KubeRun, KubeRunResult
from phalanx.core.text import plural
from phalanx.kube.api.client import ApiClient
from phalanx.kube.connection.kubeconfig import find_connection

_SEED = (
    "the same seed gives the same gangs and the same faults, in the same order; what the schedulers"
    " have done in between depends on the machine [default: 1]"
)


def main() -> int:
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="phalanx-kube-chaos-"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the control plane ends with us
    try:
        result = asyncio.run(_run(arguments, folder))
    except CannotBuildError as error:
        sys.exit(str(error))
    print(summary(result, arguments.seed))
    for violation in result.violations:
        print(f"  {violation}")
    if result.violations or arguments.keep:
        print(f"Logs are in {folder}.")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if result.violations else 0


async def _run(arguments: argparse.Namespace, folder: Path) -> KubeRunResult:
    binary = built(CONTROL_PLANE, print)
    plane = await asyncio.to_thread(ControlPlane, binary, folder / "control-plane")
    try:
        async with ApiClient(find_connection(plane.address.kubeconfig)) as client:
            pool = Pool(client, "chaos")
            await pool.open()
            run = KubeRun(plane.address, pool, folder, arguments.seed)
            if arguments.minutes:
                return await run.churn(arguments.minutes * 60)
            return await run.kill_schedulers(arguments.kills)
    finally:
        plane.stop()


def summary(result: KubeRunResult, seed: int) -> str:
    """What happened, in a few lines."""
    happened = [
        plural(result.gangs, "gang"),
        f"{plural(result.binds, 'bind')} in {plural(result.rounds, 'round')}",
        plural(result.evictions, "eviction"),
        f"{plural(result.node_losses, 'node')} lost",
    ]
    lines = [f"Seed {seed}, {result.seconds:.0f} s: {', '.join(happened)}."]
    if result.kills:
        longest, middle = max(result.takeovers), statistics.median(result.takeovers)
        points = ", ".join(f"{count} at {what}s" for what, count in result.kills.most_common())
        lines += [
            f"Killed {plural(result.kills.total(), 'scheduler')}: {points}.",
            f"{result.left_partial} kills left a gang bound in part.",
            f"Takeover: median {middle:.1f} s, longest {longest:.1f} s.",
        ]
    lines.append(f"{plural(len(result.violations), 'violation')}.")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.kubernetes", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--kills", type=int, default=10, help="kill so many schedulers [default: 10]")
    what.add_argument(
        "--minutes", type=float, help="create and delete gangs and nodes for so long instead"
    )
    parser.add_argument("--seed", type=int, default=1, help=_SEED)
    parser.add_argument("--keep", action="store_true", help="keep the logs of a good run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
