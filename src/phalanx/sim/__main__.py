"""`python -m phalanx.sim --seed N --steps M` replays one history; `--seeds` runs many.

With `--day` each seed is a day of a busy cluster, planned and replayed without its servers.
"""

import argparse
import sys
import traceback

from phalanx.sim.day import Day
from phalanx.sim.loop import run_virtually
from phalanx.sim.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m phalanx.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first history")
    parser.add_argument("--seeds", type=int, default=1, help="how many; 0 goes on until stopped")
    parser.add_argument("--steps", type=int, default=60, help="things that happen in each")
    parser.add_argument("--day", action="store_true", help="a busy day in place of a history")
    parser.add_argument("--nodes", type=int, default=100, help="nodes of the day's cluster")
    parser.add_argument("--hours", type=float, default=24.0, help="how long the day is")
    options = parser.parse_args()
    seed = options.seed
    while not options.seeds or seed < options.seed + options.seeds:
        try:
            if options.day:
                Day(seed, options.nodes, options.hours).live()
            else:
                run_virtually(simulate(seed, options.steps))
        except Exception:
            traceback.print_exc()
            day = f"--day --nodes {options.nodes} --hours {options.hours:g}"
            how = day if options.day else f"--steps {options.steps}"
            again = f"python -m phalanx.sim --seed {seed} {how}"
            sys.stderr.write(f"seed {seed} failed; see it again with: {again}\n")
            return 1
        seed += 1
    sys.stdout.write(f"{seed - options.seed} seeds passed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
