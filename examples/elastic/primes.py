"""A gang that runs with as many tasks as there is room for, and gives some back when asked.

Every task counts the primes in a range of its own, so it does not matter which of them run at the
same time. One that has to give way saves where it was and goes on from there when it is back.
"""

import json
import os
import sys
import time

from phalanx import task

SIZE = int(os.environ.get("SIZE", "10000"))
BLOCK = 100
BLOCK_S = 0.05  #: as if primes were harder to find


def is_prime(number: int) -> bool:
    return number > 1 and all(number % n for n in range(2, int(number**0.5) + 1))


def main() -> int:
    task.should_stop()
    # Its place in the job; ranks are places among those that run.
    index = int(os.environ["PHALANX_TASK"].rpartition(".")[2])
    saved = task.checkpoint.load()
    at, count = json.loads(saved) if saved else (index * SIZE, 0)
    end = (index + 1) * SIZE
    print(f"task {index} begins at {at}, attempt {task.attempt()}", flush=True)
    while at < end and not task.should_stop():
        time.sleep(BLOCK_S)
        count += sum(map(is_prime, range(at, min(at + BLOCK, end))))
        at = min(at + BLOCK, end)
        task.progress(at - index * SIZE)
    if at < end:
        task.checkpoint.save(json.dumps([at, count]).encode())
        print(f"task {index} gives way at {at}", flush=True)
        return 1
    print(f"{count} primes from {index * SIZE} to {end}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
