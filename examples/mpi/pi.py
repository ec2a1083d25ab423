"""Compute pi with MPI: each process integrates its part, and the parts are added."""

import os

from mpi4py import MPI

STRIPS = 1_000_000


def main() -> None:
    world = MPI.COMM_WORLD
    middles = ((n + 0.5) / STRIPS for n in range(world.rank, STRIPS, world.size))
    own = sum(4 / (1 + x * x) for x in middles) / STRIPS
    pi = world.allreduce(own)
    index = os.environ.get("PHALANX_TASK", "no task").rpartition(".")[2]
    print(f"MPI rank {world.rank} of {world.size} in task {index}: pi is {pi:.6f}", flush=True)


if __name__ == "__main__":
    main()
