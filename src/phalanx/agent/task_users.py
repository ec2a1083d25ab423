"""The users that tasks run as: each namespace has its own, where the operator has set so.

Processes of one user can read each other's environment and files, so tasks of different namespaces
must not share a user.
"""

import hashlib
import os
import pwd
import stat
from pathlib import Path

import msgspec

from phalanx.agent.messages import TaskUser
from phalanx.host.file_replacement import replace_file

#: A job cannot choose a user below this uid: those belong to the system.
FIRST_USER_UID = 1000


class UserRefused(Exception):  # noqa: N818
    """The task has no user that it may run as; the message says why and what to do."""


class UserPolicy(msgspec.Struct, frozen=True):
    """The operator's settings. Without any, tasks run as the agent's user."""

    by_namespace: dict[str, str] = {}
    default: str | None = None  #: the user of all other namespaces
    uids: tuple[int, int] | None = None  #: the range from which all other namespaces get a uid

    @property
    def is_set(self) -> bool:
        return bool(self.by_namespace or self.default or self.uids)


def check_policy(policy: UserPolicy, state_dir: Path) -> None:
    """Refuse settings that no task could be started with. Raises UserRefused, OSError."""
    if not policy.is_set:
        return
    if os.geteuid() != 0:
        raise UserRefused("--task-user and --task-uids need root; start the worker as root")
    for name in {*policy.by_namespace.values(), *filter(None, [policy.default])}:
        named_user(name)
    for folder in state_dir.parents:
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH:
            raise UserRefused(
                f"tasks of other users cannot enter {folder}, which the state directory is in;"
                " choose another one with --state-dir"
            )


class TaskUsers:
    def __init__(self, policy: UserPolicy, uid_file: Path) -> None:
        """`uid_file` keeps the uids that namespaces were given from the range."""
        self._policy = policy
        self._uid_file = uid_file
        self._uids = _stored_uids(uid_file)

    def user_of(self, namespace: str, run_as_user: str | None) -> TaskUser | None:
        """The user of a task; None for the agent's user. Raises UserRefused, OSError."""
        if not self._policy.is_set:
            if run_as_user is not None:
                raise UserRefused(
                    "run_as_user: this worker runs all tasks as its own user; start it as root"
                    " with --task-user or --task-uids"
                )
            return None
        if run_as_user is not None:
            return self._chosen(run_as_user)
        name = self._policy.by_namespace.get(namespace, self._policy.default)
        if name is not None:
            return named_user(name)
        if self._policy.uids is None:
            raise UserRefused(
                f"namespace {namespace} has no user on this worker; give it one with"
                f" --task-user {namespace}=USER"
            )
        uid = self._uid(namespace, *self._policy.uids)
        return TaskUser(uid, uid, name=str(uid))

    def _chosen(self, name: str) -> TaskUser:
        try:
            user = named_user(name)
        except UserRefused as error:
            raise UserRefused(f"run_as_user: {error}") from None
        if user.uid < FIRST_USER_UID:
            raise UserRefused(f"run_as_user: {name} is a user of the system; choose another user")
        return user

    def _uid(self, namespace: str, first: int, last: int) -> int:
        """The uid of a namespace, the same on all workers that have the same range."""
        digest = hashlib.sha256(namespace.encode()).digest()
        uid = first + int.from_bytes(digest[:8], "big") % (last - first + 1)
        other = self._uids.get(uid, namespace)
        if other != namespace:
            raise UserRefused(
                f"namespaces {namespace} and {other} have the same uid {uid} on this worker; give"
                f" one of them a user with --task-user {namespace}=USER, or extend --task-uids"
            )
        if uid not in self._uids:
            self._uids[uid] = namespace
            replace_file(self._uid_file, msgspec.json.encode(self._uids), durable=True)
        return uid


def named_user(name: str) -> TaskUser:
    """The user with this name, and its groups. Raises UserRefused."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise UserRefused(f"there is no user {name} on this worker") from None
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return TaskUser(entry.pw_uid, entry.pw_gid, groups, name, entry.pw_dir)


def _stored_uids(path: Path) -> dict[int, str]:
    data = path.read_bytes() if path.exists() else b"{}"
    return msgspec.json.decode(data, type=dict[int, str])


def identity(user: TaskUser, folder: Path) -> dict[str, str]:
    """The variables that name a user. One that is only a number has the task's folder as home."""
    home = user.home if user.home and Path(user.home).is_dir() else str(folder)
    return {"HOME": home, "USER": user.name, "LOGNAME": user.name, "SHELL": "/bin/sh"}
