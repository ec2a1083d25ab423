"""`python -m chaos --seed 7 --minutes 2 --store postgres`: a cluster with faults, and a verdict.

Exits with status 1 if a rule was violated.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.cluster import private_mounts
from chaos.report import explanation, summary
from chaos.run import ChaosRun, RunResult


def main() -> int:
    arguments = _arguments()
    has_disks = private_mounts()
    if not has_disks:
        print("Workers have no disks of their own, so none is filled: this needs root.")
    folder = Path(tempfile.mkdtemp(prefix="phalanx-chaos-"))
    folder.chmod(0o755)
    # One seed after the other covers both.
    store = arguments.store or ("sqlite" if arguments.seed % 2 else "postgres")
    run = ChaosRun(arguments.seed, arguments.minutes * 60, store, folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster ends with us
    result: RunResult = asyncio.run(run.run(has_disks=has_disks))
    print(summary(result, arguments.seed, store))
    if result.violations:
        print(f"\nSeed {arguments.seed}:\n{explanation(result, folder)}")
        return 1
    if arguments.keep:
        print(f"Logs and the lines of the tasks are in {folder}.")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="gives the jobs and the faults")
    parser.add_argument("--minutes", type=float, default=1.0, help="duration of the faults")
    parser.add_argument("--store", choices=("postgres", "sqlite"), help="default: by the seed")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a good run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
