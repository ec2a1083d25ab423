"""Pi, by as many MPI processes as there are: each integrates its strips, and all add up."""

import os

from mpi4py import MPI

STRIPS = 1_000_000


def main() -> None:
    world = MPI.COMM_WORLD
    middles = ((n + 0.5) / STRIPS for n in range(world.rank, STRIPS, world.size))
    mine = sum(4 / (1 + x * x) for x in middles) / STRIPS
    pi = world.allreduce(mine)
    where = os.environ.get("PHALANX_TASK", "no task").rpartition(".")[2]
    print(f"MPI rank {world.rank} of {world.size} in task {where}: pi is {pi:.6f}", flush=True)


if __name__ == "__main__":
    main()
