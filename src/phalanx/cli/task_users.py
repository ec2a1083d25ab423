"""The flags of `phalanx worker` that say which users tasks run as."""

from typing import TYPE_CHECKING

from phalanx.cli.settings import refuse
from phalanx.core.errors import Invalid
from phalanx.core.spec.names import dns_label

if TYPE_CHECKING:
    from phalanx.agent.task_users import UserPolicy

#: The kernel reserves the last uid.
_UID_END = 2**32 - 1
_FIRST_UID = 1000


def user_policy(users: list[str], uids: str | None) -> "UserPolicy":
    """The policy of `--task-user` and `--task-uids`; refused if they contradict each other."""
    from phalanx.agent.task_users import UserPolicy  # noqa: PLC0415

    pairs = [each.rpartition("=") for each in users]
    defaults = [user for namespace, _, user in pairs if not namespace]
    if not all(user for _, _, user in pairs):
        refuse("--task-user: a user is empty; write it like NAMESPACE=USER")
    if len(defaults) + bool(uids) > 1:
        refuse("--task-user: give one user, or --task-uids, for all other namespaces")
    by_namespace = {namespace: user for namespace, _, user in pairs if namespace}
    try:
        for namespace in by_namespace:
            dns_label(namespace)
    except Invalid as error:
        refuse(*(f"--task-user: a namespace {problem.message}" for problem in error.problems))
    span = None if uids is None else _uids(uids)
    return UserPolicy(by_namespace, defaults[0] if defaults else None, span)


def _uids(written: str) -> tuple[int, int]:
    first, _, last = written.partition("-")
    is_range = first.isdecimal() and last.isdecimal()
    if not is_range or not _FIRST_UID <= int(first) <= int(last) < _UID_END:
        refuse(
            f"--task-uids: {written} is not a range of uids from {_FIRST_UID} on; write it like"
            " 200000000-299999999"
        )
    return int(first), int(last)
