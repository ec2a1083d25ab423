"""`python -m phalanx.sim --seed N --steps M` replays one history; `--seeds` runs many."""

import argparse
import sys
import traceback

from phalanx.sim.loop import run_virtually
from phalanx.sim.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m phalanx.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first history")
    parser.add_argument("--seeds", type=int, default=1, help="how many; 0 goes on until stopped")
    parser.add_argument("--steps", type=int, default=60, help="things that happen in each")
    options = parser.parse_args()
    seed = options.seed
    while not options.seeds or seed < options.seed + options.seeds:
        try:
            run_virtually(simulate(seed, options.steps))
        except Exception:
            traceback.print_exc()
            sys.stderr.write(
                f"seed {seed} failed; see it again with: "
                f"python -m phalanx.sim --seed {seed} --steps {options.steps}\n"
            )
            return 1
        seed += 1
    sys.stdout.write(f"{seed - options.seed} seeds passed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
