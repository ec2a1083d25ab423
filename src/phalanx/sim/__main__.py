"""Simulate clusters with random faults, one per seed; a seed always gives the same simulation.

With `--day` each seed is a busy day of a cluster, simulated without servers.
"""

import argparse
import sys
import traceback

from phalanx.sim.busy_day import BusyDay
from phalanx.sim.fault_simulation import simulate_faults
from phalanx.sim.loop import run_virtually


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m phalanx.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds; 0 runs until stopped")
    parser.add_argument("--steps", type=int, default=60, help="number of random actions per seed")
    parser.add_argument("--day", action="store_true", help="simulate busy days without servers")
    parser.add_argument("--nodes", type=int, default=100, help="number of nodes, with --day")
    parser.add_argument("--hours", type=float, default=24.0, help="length of the day, with --day")
    options = parser.parse_args()
    seed = options.seed
    while not options.seeds or seed < options.seed + options.seeds:
        try:
            if options.day:
                BusyDay(seed, options.nodes, options.hours).run()
            else:
                run_virtually(simulate_faults(seed, options.steps))
        except Exception:
            traceback.print_exc()
            day = f"--day --nodes {options.nodes} --hours {options.hours:g}"
            flags = day if options.day else f"--steps {options.steps}"
            command = f"python -m phalanx.sim --seed {seed} {flags}"
            sys.stderr.write(f"seed {seed} failed; to reproduce: {command}\n")
            return 1
        seed += 1
    sys.stdout.write(f"{seed - options.seed} seeds passed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
