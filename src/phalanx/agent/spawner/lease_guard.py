"""Kills fenced attempts that have outlived the worker's lease, without the help of the spawner."""

from phalanx.agent.lease import LeaseFile
from phalanx.agent.spawner import cgroups, process_tree
from phalanx.agent.spawner.journal import Journal
from phalanx.agent.spawner.process_tree import ProcessTree
from phalanx.agent.spawner.recovery import prevent_starts
from phalanx.agent.state_dir import StateDir
from phalanx.host.clock import boot_time

#: How often a process that is not the spawner looks at the lease.
LEASE_CHECK_S = 1.0


class LeaseGuard:
    def __init__(self, state_dir: StateDir, lease: LeaseFile) -> None:
        self._state_dir = state_dir
        self._lease = lease
        self._enforced = 0.0  #: the end of the last lease that was enforced

    def is_due(self, delay_s: float = 0.0) -> bool:
        """Whether the lease ended more than `delay_s` ago and was not enforced yet."""
        ends_at = self._lease.ends_at()
        return ends_at != self._enforced and boot_time() >= ends_at + delay_s

    def enforce(self) -> None:
        """Kill the fenced attempts. No other one is started under this lease. Raises OSError."""
        ends_at = self._lease.ends_at()
        journal = Journal(self._state_dir.journal)
        journal.load()
        path_file = self._state_dir.cgroup_file
        prevent_starts(journal.open_starts(fenced=True).values())
        process_tree.kill_all(
            ProcessTree(start.process_tag, cgroups.leftover_group(path_file, key))
            for key, start in journal.open_starts(fenced=True).items()
        )
        self._enforced = ends_at
