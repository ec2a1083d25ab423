"""The spawner's process: `python -m phalanx.agent.spawner STATE_DIR`."""

import os
import signal
import sys
from pathlib import Path

from phalanx.agent.process_isolation import isolate_process
from phalanx.agent.process_lock import ProcessLock
from phalanx.agent.spawner.spawner import Spawner
from phalanx.agent.state_dir import StateDir

#: Without a link and without attempts the spawner exits after this time; the next link starts
#: another one.
IDLE_EXIT_S = 300.0


def main(path: str, idle_exit_s: float = IDLE_EXIT_S) -> None:
    """Run the spawner of a state directory, unless another process does."""
    isolate_process()
    state_dir = StateDir(Path(path))
    state_dir.discard_unusable()
    lock = ProcessLock.acquire(state_dir.spawner_lock)
    if lock is None:
        return
    os.chdir("/")
    # Signals of the terminal or the service manager are for the link; the spawner outlives it.
    signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
    )
    try:
        Spawner(state_dir, idle_exit_s).run()
    finally:
        lock.release()


if __name__ == "__main__":
    main(sys.argv[1])
