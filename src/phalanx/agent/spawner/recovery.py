"""Cleaning up after a spawner that died: its processes are killed and their attempts recorded."""

from phalanx.agent.messages import AttemptStatus
from phalanx.agent.spawner import cgroups
from phalanx.agent.spawner.journal import EndEntry, ForgetEntry, Journal
from phalanx.agent.spawner.process_tree import ProcessTree, kill_all, monitor_tag, new_tag
from phalanx.agent.state_dir import StateDir


def kill_leftovers(state_dir: StateDir, journal: Journal) -> None:
    """Kill the processes of every attempt that the journal has no end of; return when none lives.

    The journal must have been loaded, and the state directory's spawner must be dead.
    """
    starts = journal.open_starts().values()
    # What could still start or report a container goes first.
    kill_all(ProcessTree(monitor_tag(start.process_tag)) for start in starts if start.container)
    # The group of the worker is the parent of all attempts' groups, so no tag belongs to it.
    worker = ProcessTree(new_tag(), cgroups.leftover_group(state_dir.cgroup_file))
    kill_all([worker, *(ProcessTree(start.process_tag) for start in starts)])
    cgroups.remove_leftovers(state_dir.cgroup_file)


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
