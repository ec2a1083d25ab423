"""The mounted hierarchies of control groups (version 1 and 2), and this process's group in each."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

#: The controllers that limits are set with.
CONTROLLERS = frozenset({"memory", "cpu", "pids"})
#: A group of this name is a leaf for the agent, and its parent was delegated to the agent: version
#: 2 allows no limits below a group that has processes of its own.
AGENT_LEAF = "phalanx-agent"


class Hierarchy(NamedTuple):
    version: int
    own_group: Path  #: the group that this process is in
    controllers: frozenset[str]  #: those that can be used below the group

    @property
    def parent(self) -> Path:
        """The group below which the worker creates its own."""
        is_leaf = self.version == 2 and self.own_group.name == AGENT_LEAF
        return self.own_group.parent if is_leaf else self.own_group


class _Mount(NamedTuple):
    root: str
    point: Path
    kind: str
    options: frozenset[str]


def hierarchies(proc: Path) -> list[Hierarchy]:
    """The hierarchies that can kill or limit processes: version 2 first, if it is mounted."""
    try:
        groups, mounts = ((proc / name).read_text() for name in ("cgroup", "mountinfo"))
    except OSError:
        return []
    mounted = list(_mounts(mounts))
    result: list[Hierarchy] = []
    for line in groups.splitlines():
        number, names, own = line.split(":", 2)
        controllers = frozenset(names.split(",")) & CONTROLLERS
        if number == "0":
            path = _folder(own, (mount for mount in mounted if mount.kind == "cgroup2"))
            if path is not None:
                hierarchy = Hierarchy(2, path, frozenset())
                result.insert(0, hierarchy._replace(controllers=_version_2(hierarchy.parent)))
        elif controllers:
            path = _folder(
                own, (m for m in mounted if m.kind == "cgroup" and controllers <= m.options)
            )
            if path is not None:
                result.append(Hierarchy(1, path, controllers))
    return result


def common_parent(proc: Path) -> PurePosixPath | None:
    """The group below which the worker creates its own, if it has the same path in all hierarchies
    that can kill or limit processes."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = set()
    for line in lines:
        number, names, own = line.split(":", 2)
        path = PurePosixPath(own)
        if number == "0" and path.name == AGENT_LEAF:
            path = path.parent
        if number == "0" or CONTROLLERS & set(names.split(",")):
            paths.add(path)
    return paths.pop() if len(paths) == 1 else None


def all_own_groups(proc: Path) -> list[Path]:
    """This process's group in every hierarchy, also in those that limits are not set with."""
    try:
        groups, mounts = ((proc / name).read_text() for name in ("cgroup", "mountinfo"))
    except OSError:
        return []
    mounted = list(_mounts(mounts))
    folders: list[Path] = []
    for line in groups.splitlines():
        number, names, own = line.split(":", 2)
        kind, options = ("cgroup2", set()) if number == "0" else ("cgroup", set(names.split(",")))
        path = _folder(own, (m for m in mounted if m.kind == kind and options <= m.options))
        folders += [] if path is None else [path]
    return folders


def in_every_hierarchy(group: PurePosixPath, proc: Path) -> list[Path]:
    """The folders of a group in all mounted hierarchies, whether it exists there or not."""
    try:
        mounts = (proc / "mountinfo").read_text()
    except OSError:
        return []
    folders = (
        _folder(str(group), iter([mount]))
        for mount in _mounts(mounts)
        if mount.kind in ("cgroup", "cgroup2")
    )
    return [folder for folder in folders if folder is not None]


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        mount, _, file_system = line.partition(" - ")
        root, point = mount.split(" ")[3:5]
        kind, _, options = file_system.split(" ", 2)
        # Spaces in paths are escaped as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
        yield _Mount(root, Path(point), kind, frozenset(options.split(",")))


def _folder(own: str, mounts: Iterator[_Mount]) -> Path | None:
    """The folder of a group, if one of the mounts shows it."""
    group = PurePosixPath(own)
    if ".." in group.parts:
        return None
    for mount in mounts:
        if group.is_relative_to(mount.root):
            return mount.point / group.relative_to(mount.root)
    return None


def _version_2(group: Path) -> frozenset[str]:
    try:
        return frozenset((group / "cgroup.controllers").read_text().split()) & CONTROLLERS
    except OSError:
        return frozenset()
