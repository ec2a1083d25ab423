"""The security settings of a task that runs in a container."""

import re
from typing import Any

import msgspec

from phalanx.core.spec.fields import (
    Field,
    boolean,
    distinct,
    integer,
    read_table,
    refusal,
    shown,
    text,
    write_fields,
)

#: The largest user id of Linux; the next number means "no user".
_LARGEST_UID = 2**32 - 2
#: The capabilities of Linux, and all of them.
_CAPABILITY_NAMES = frozenset(
    [
        "AUDIT_CONTROL",
        "AUDIT_READ",
        "AUDIT_WRITE",
        "BLOCK_SUSPEND",
        "BPF",
        "CHECKPOINT_RESTORE",
        "CHOWN",
        "DAC_OVERRIDE",
        "DAC_READ_SEARCH",
        "FOWNER",
        "FSETID",
        "IPC_LOCK",
        "IPC_OWNER",
        "KILL",
        "LEASE",
        "LINUX_IMMUTABLE",
        "MAC_ADMIN",
        "MAC_OVERRIDE",
        "MKNOD",
        "NET_ADMIN",
        "NET_BIND_SERVICE",
        "NET_BROADCAST",
        "NET_RAW",
        "PERFMON",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYSLOG",
        "SYS_ADMIN",
        "SYS_BOOT",
        "SYS_CHROOT",
        "SYS_MODULE",
        "SYS_NICE",
        "SYS_PACCT",
        "SYS_PTRACE",
        "SYS_RAWIO",
        "SYS_RESOURCE",
        "SYS_TIME",
        "SYS_TTY_CONFIG",
        "WAKE_ALARM",
        "ALL",
    ]
)
UNCONFINED = "unconfined"
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_PROFILE_LIMIT = 253


class ContainerSecurity(msgspec.Struct, frozen=True, omit_defaults=True):
    run_as_user: int | None = None  #: instead of the user of the image
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    apparmor: str | None = None  #: the name of a profile, or `unconfined`
    read_only_root: bool = False
    privileged: bool = False


def _capability(value: object) -> str:
    name = text(value).upper().removeprefix("CAP_")
    if name not in _CAPABILITY_NAMES:
        raise refusal(f"is {shown(value)}; write a capability of Linux, like NET_ADMIN, or ALL")
    return name


def _apparmor(value: object) -> str:
    name = text(value)
    if len(name) > _PROFILE_LIMIT or not _PROFILE.fullmatch(name):
        raise refusal(f"is {shown(name)}; write unconfined, or the name of an AppArmor profile")
    return UNCONFINED if name.lower() == UNCONFINED else name


_CAPABILITIES = distinct("a list of capabilities, like [NET_ADMIN]", _capability)
_CAPABILITY_FIELDS = {
    "add": Field(_CAPABILITIES, [], list),
    "drop": Field(_CAPABILITIES, [], list),
}


def _capabilities(value: object) -> dict[str, Any]:
    return read_table(value, "a mapping, like {add: [NET_ADMIN], drop: [ALL]}", _CAPABILITY_FIELDS)


_FIELDS = {
    "run_as_user": Field(integer(0, _LARGEST_UID)),
    "apparmor": Field(_apparmor),
    "read_only_root": Field(boolean, default=False),
    "privileged": Field(boolean, default=False),
}


def security(value: object) -> ContainerSecurity:
    """The settings of a document."""
    what = "a mapping, like {run_as_user: 65534, read_only_root: true}"
    values = read_table(value, what, _FIELDS | {"capabilities": Field(_capabilities, {})})
    capabilities = values.pop("capabilities")
    return ContainerSecurity(
        **values,
        add_capabilities=capabilities["add"],
        drop_capabilities=capabilities["drop"],
    )


def written_security(settings: ContainerSecurity) -> dict[str, object]:
    """The settings as a user writes them."""
    capabilities = {
        name: list(names)
        for name, names in (
            ("add", settings.add_capabilities),
            ("drop", settings.drop_capabilities),
        )
        if names
    }
    written = write_fields(settings, _FIELDS)
    return written | ({"capabilities": capabilities} if capabilities else {})
