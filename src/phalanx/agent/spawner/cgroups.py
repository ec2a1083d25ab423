"""Control groups: one for each attempt in each hierarchy, where the kernel allows it.

A process cannot leave its groups; the kernel kills a group of version 2 as a whole, and holds the
processes to the limits of the group. Where the worker may not create groups, there are none, and
the processes of an attempt are found by their tag alone.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from phalanx.agent.messages import AttemptKey, TaskLimits, attempt_name
from phalanx.agent.spawner import cgroup_limits
from phalanx.agent.spawner.cgroup_hierarchies import (
    AGENT_LEAF,
    CONTROLLERS,
    Hierarchy,
    all_own_groups,
    common_parent,
    hierarchies,
    in_every_hierarchy,
)
from phalanx.agent.spawner.cgroup_limits import LIMITS, LimitsReached
from phalanx.agent.spawner.group_folder import GroupFolder, SpawnerGroup, write
from phalanx.agent.task_files import read_short
from phalanx.host.file_replacement import replace_file

_PREFIX = "phalanx-"
_SUBTREE = "cgroup.subtree_control"


class ControlGroup(NamedTuple):
    """The groups of one attempt: one folder in each hierarchy."""

    folders: tuple[GroupFolder, ...]
    by_controller: dict[str, GroupFolder] = {}  # noqa: RUF012
    limits: TaskLimits = TaskLimits()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Processes that are started in the block are members of the groups from their start.

        Raises OSError.
        """
        joined: list[GroupFolder] = []
        try:
            for folder in self.folders:
                folder.join()
                joined.append(folder)
            yield
        finally:
            for folder in joined:
                _leave(folder)
        self.limit_cpu()

    def limit_cpu(self) -> None:
        """Set the share of the CPUs, as far as the kernel takes it."""
        with suppress(OSError):
            cgroup_limits.limit_after_start(self.by_controller, self.limits)

    def limits_reached(self) -> LimitsReached:
        return cgroup_limits.limits_reached(self.by_controller)

    def kill(self) -> None:
        """Kill every process in the group, as far as the kernel does so by itself."""
        for folder in self.folders:
            folder.kill()

    def pids(self) -> set[int]:
        """The living processes in the groups."""
        return set().union(*(folder.pids() for folder in self.folders))

    def remove(self) -> bool:
        """Remove the groups; False if a process still lives in one."""
        left = [folder for folder in self.folders if not folder.remove()]
        return not left


def _leave(folder: GroupFolder) -> None:
    try:
        folder.leave()
    except OSError as error:
        # Killing the attempt would kill the spawner, so it must not continue.
        why = f"the spawner cannot return to its control group {folder.spawner_group.path}"
        raise SystemExit(f"{why}: {error.strerror}") from error


class ControlGroups:
    """The groups of a worker's attempts, below one group for the worker in each hierarchy.

    The paths of the worker's groups are written to a file, so that a later spawner can clean up.
    """

    def __init__(self, path_file: Path, proc: Path = Path("/proc/self")) -> None:
        self.name = f"{_PREFIX}{uuid4().hex[:12]}"  #: of the worker's groups
        #: By limit: why it is not enforced.
        self.unenforced: dict[str, str] = {
            LIMITS[controller]: "no hierarchy of control groups with this controller"
            for controller in sorted(CONTROLLERS)
        }
        #: The worker's group in each hierarchy, and the controllers that it is used for.
        self._groups: list[tuple[GroupFolder, list[str]]] = []
        self._create_worker_groups(path_file, hierarchies(proc))
        for group, controllers in self._groups:
            for controller in controllers:
                del self.unenforced[LIMITS[controller]]
            if "cpu" in controllers:
                # Among the processes of the machine, the tasks together weigh as much as its CPUs.
                with suppress(OSError):
                    cgroup_limits.set_cpu_weight(group, 1000 * (os.cpu_count() or 1))

    def _create_worker_groups(self, path_file: Path, mounted: list[Hierarchy]) -> None:
        groups = [(h, _folder(h.parent / self.name, h.version, h.own_group)) for h in mounted]
        with suppress(OSError):
            paths = "\n".join(group.path for _, group in groups)
            replace_file(path_file, os.fsencode(paths), durable=False)
            for hierarchy, group in groups:
                self._create_worker_group(hierarchy, group)

    def _create_worker_group(self, hierarchy: Hierarchy, group: GroupFolder) -> None:
        try:
            Path(group.path).mkdir()
            # The right to create a group does not include the right to join it, or to leave it.
            group.join()
            group.leave()
        except OSError as error:
            group.remove()
            why = f"cannot create control groups in {hierarchy.parent}: {error.strerror}"
            self.unenforced |= {LIMITS[each]: why for each in hierarchy.controllers}
            return
        usable = [
            controller
            for controller in hierarchy.controllers
            if hierarchy.version == 1 or self._enable(controller, hierarchy, group)
        ]
        self._groups.append((group, usable))

    def _enable(self, controller: str, hierarchy: Hierarchy, group: GroupFolder) -> bool:
        """Pass a controller of version 2 on to the groups of attempts; whether that worked."""
        try:
            for path in (str(hierarchy.parent), group.path):
                write(path, _SUBTREE, f"+{controller}")
        except OSError as error:
            self.unenforced[LIMITS[controller]] = (
                f"cannot use the controller below {hierarchy.parent}: {error.strerror}; start the"
                f" worker in a control group named {AGENT_LEAF} whose parent is delegated to it"
            )
            return False
        return True

    def create(self, key: AttemptKey, limits: TaskLimits) -> ControlGroup | None:
        """New groups for an attempt, or None where the worker may not create any. Raises OSError"""
        if not self._groups:
            return None
        name = attempt_name(key)
        created: list[GroupFolder] = []
        by_controller: dict[str, GroupFolder] = {}
        try:
            for worker, controllers in self._groups:
                needed = [each for each in controllers if limits.uses(each)]
                if needed or worker.version == 2:
                    group = worker.child(name)
                    created.append(group)
                    by_controller |= dict.fromkeys(needed, group)
            cgroup_limits.limit_before_start(by_controller, limits)
        except OSError:
            ControlGroup(tuple(created)).remove()
            raise
        return ControlGroup(tuple(created), by_controller, limits)

    def warm_up(self) -> None:
        """Make the next join cheap: after a pause the first one waits for all CPUs."""
        for group, _ in self._groups:
            if group.version == 2:
                with suppress(OSError):
                    group.leave()

    def close(self) -> None:
        """Remove the worker's groups, after all attempts have ended."""
        ControlGroup(tuple(group for group, _ in self._groups)).remove()
        remove_everywhere(self.name)


def _folder(path: Path, version: int, spawner_group: Path) -> GroupFolder:
    return GroupFolder(str(path), version, SpawnerGroup(str(spawner_group), version))


def group_of(worker: str, key: AttemptKey) -> str:
    """The group of an attempt, relative to the group of the spawner in each hierarchy."""
    return f"{worker}/{attempt_name(key)}"


def remove_everywhere(name: str) -> None:
    """Remove an empty group in every hierarchy: a container has groups in all of them."""
    proc = Path("/proc/self")
    own_groups = all_own_groups(proc)
    parents = {parent for own in own_groups for parent in (own, own.parent)}
    common = common_parent(proc)
    if common is not None:
        parents.update(in_every_hierarchy(common, proc))  # where Docker creates them
    for parent in parents:
        if (parent / name).is_dir():
            _folder(parent / name, 1, parent).remove()


def remove_leftovers(path_file: Path) -> None:
    """Remove the groups of an earlier spawner, after all its processes were killed."""
    for name in {Path(line).name for line in read_short(path_file).splitlines()}:
        if name.startswith(_PREFIX):
            remove_everywhere(name)


def leftover_group(path_file: Path, key: AttemptKey | None = None) -> ControlGroup | None:
    """The groups of the worker, or of one attempt, as far as they exist and may be killed."""
    lines = read_short(path_file).splitlines()
    paths = [path for path in map(Path, lines) if path.name.startswith(_PREFIX)]
    if key is not None:
        paths = [path / attempt_name(key) for path in paths]
    folders = tuple(
        _folder(path, 2 if (path / "cgroup.events").exists() else 1, path.parent)
        for path in paths
        if os.access(path / "cgroup.procs", os.W_OK)
    )
    return ControlGroup(folders) if folders else None
