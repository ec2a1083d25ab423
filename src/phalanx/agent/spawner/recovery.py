"""Cleaning up after a spawner that died: its processes are killed and their attempts recorded."""

import subprocess
from collections.abc import Iterable

from phalanx.agent.messages import AttemptStatus
from phalanx.agent.spawner import cgroups
from phalanx.agent.spawner.journal import EndEntry, ForgetEntry, Journal, StartEntry
from phalanx.agent.spawner.process_tree import ProcessTree, kill_all, monitor_tag, new_tag
from phalanx.agent.state_dir import StateDir

#: How long a daemon has to answer before it is asked again.
_ANSWER_S = 30.0


def kill_leftovers(state_dir: StateDir, journal: Journal) -> None:
    """Kill the processes of every attempt that the journal has no end of; return when none lives.

    The journal must have been loaded, and the state directory's spawner must be dead.
    """
    starts = journal.open_starts().values()
    # What could still start or report a container goes first.
    kill_all(ProcessTree(monitor_tag(start.process_tag)) for start in starts if start.container)
    prevent_starts(starts)
    # The group of the worker is the parent of all attempts' groups, so no tag belongs to it.
    worker = ProcessTree(new_tag(), cgroups.leftover_group(state_dir.cgroup_file))
    kill_all([worker, *(ProcessTree(start.process_tag) for start in starts)])
    cgroups.remove_leftovers(state_dir.cgroup_file)


def prevent_starts(starts: Iterable[StartEntry]) -> None:
    """Remove containers that a daemon may be about to start; return when none can start.

    A daemon that is not there starts nothing, and one that hangs is waited for.
    """
    waiting = {start.remove for start in starts if start.remove}
    while waiting:
        done = {command for command in waiting if _has_answered(command)}
        waiting -= done


def _has_answered(command: tuple[str, ...]) -> bool:
    try:
        subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    except OSError:
        return True  # the program was removed: its tasks are found by their tags
    return True


def recover(state_dir: StateDir, journal: Journal) -> list[AttemptStatus]:
    """Clean up after an earlier spawner; return the status of every attempt it had not forgotten.

    An attempt whose end was not recorded is gone: its exit status is unknown. A container whose
    program was not started is forgotten, and can be prepared again. Raises OSError.
    """
    journal.load()
    kill_leftovers(state_dir, journal)
    for key, start in journal.open_starts().items():
        journal.add(
            ForgetEntry(*key) if start.waiting else EndEntry(AttemptStatus(*key, gone=True))
        )
    journal.write()
    return journal.ended()
