"""An elastic gang: it runs with as many tasks as fit, and can be shrunk while it runs.

Every task counts the primes of its own range, so any subset of the tasks can run at a time. A task
that is stopped saves its position, and resumes there when it starts again.
"""

import json
import os
import sys
import time

from phalanx import task

SIZE = int(os.environ.get("SIZE", "10000"))
BLOCK = 100
BLOCK_S = float(os.environ.get("BLOCK_S", "0.05"))  #: stands for a longer computation


def is_prime(number: int) -> bool:
    return number > 1 and all(number % n for n in range(2, int(number**0.5) + 1))


def main() -> int:
    task.should_stop()
    # The index in the job. Ranks would change with the number of running tasks.
    index = int(os.environ["PHALANX_TASK"].rpartition(".")[2])
    saved = task.checkpoint.load()
    position, count = json.loads(saved) if saved else (index * SIZE, 0)
    end = (index + 1) * SIZE
    print(f"task {index} starts at {position}, attempt {task.attempt()}", flush=True)
    while position < end and not task.should_stop():
        time.sleep(BLOCK_S)
        count += sum(map(is_prime, range(position, min(position + BLOCK, end))))
        position = min(position + BLOCK, end)
        task.progress(position - index * SIZE)
    if position < end:
        task.checkpoint.save(json.dumps([position, count]).encode())
        print(f"task {index} stopped at {position}", flush=True)
        return 1
    print(f"{count} primes from {index * SIZE} to {end}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
