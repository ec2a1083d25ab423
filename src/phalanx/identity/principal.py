"""Principals: the role of a caller, and the namespaces and workers that it has access to."""

from typing import Literal

import msgspec

from phalanx.core.model import Protocol
from phalanx.core.node import Node
from phalanx.core.spec.job import JobSpec

#: A `worker` speaks the plain protocol; an `agent` is a worker with the credential that it got when
#: it joined.
Role = Literal["user", "worker", "agent", "join", "admin"]

#: As a namespace of a token, or as the workers that it is for: all of them.
EVERY = "*"


class Principal(msgspec.Struct, frozen=True):
    name: str
    role: Role
    namespaces: tuple[str, ...] = ()
    workers: str = ""  #: the worker that it acts as, or the beginning of names and `*`
    token_id: str = ""  #: empty without a token

    def may_see(self, namespace: str) -> bool:
        return self.role == "admin" or EVERY in self.namespaces or namespace in self.namespaces

    @property
    def confined_to(self) -> tuple[str, ...] | None:
        """The namespaces that it has access to; None means all."""
        return None if self.role == "admin" or EVERY in self.namespaces else self.namespaces

    @property
    def only_namespace(self) -> str | None:
        """The namespace, if it has access to one only."""
        own = self.confined_to
        return own[0] if own is not None and len(own) == 1 else None

    def may_act_as(self, worker: str | None) -> bool:
        """Whether it may report for this worker; None is a runner without a name."""
        if self.role == "admin" or self.workers == EVERY:
            return True
        return worker is not None and matches(self.workers, worker)


def matches(pattern: str, worker: str) -> bool:
    """Whether a worker's name is the pattern, or begins with what is before its `*`."""
    if pattern.endswith(EVERY):
        return worker.startswith(pattern[:-1])
    return worker == pattern


class Unauthorised(Exception):  # noqa: N818
    """The token is missing, unknown or expired."""


class Revoked(Unauthorised):
    """The credential of a worker was revoked."""


class CertificateRequired(Unauthorised):
    """A worker with a valid credential did not show its certificate."""


class Forbidden(Exception):  # noqa: N818
    """The token's role, namespaces or workers do not allow this."""


def check_role(principal: Principal, allowed: tuple[Role, ...]) -> None:
    """Raise Forbidden unless the principal has one of the roles, or is an admin."""
    if principal.role == "admin" or principal.role in allowed:
        return
    wanted = " or ".join(("admin", *(role for role in allowed if role != "admin")))
    raise Forbidden(
        f"the token {principal.name} has the role {principal.role}; this requires {wanted}"
    )


def check_namespace(principal: Principal, namespace: str) -> None:
    """Raise Forbidden unless the principal has access to the namespace."""
    if not principal.may_see(namespace):
        own = ", ".join(principal.namespaces) or "none"
        cure = "; name one of them" if len(principal.namespaces) > 1 else ""
        raise Forbidden(
            f"{principal.name} may not use namespace {namespace}; its namespaces are: {own}{cure}"
        )


def check_namespaces_of(principal: Principal, spec: JobSpec) -> None:
    """Raise Forbidden unless the principal has access to the namespace of a job and those of its
    group, because the end of one job of a group can end the others."""
    for namespace in (spec.namespace, *(name.partition("/")[0] for name in spec.group)):
        check_namespace(principal, namespace)


def check_worker(principal: Principal, worker: str | None) -> None:
    """Raise Forbidden unless the principal may report for this worker."""
    if principal.may_act_as(worker):
        return
    if worker is None:
        raise Forbidden(
            f"the token {principal.name} is for worker {principal.workers}; name the worker with"
            " worker_id"
        )
    raise Forbidden(
        f"the token {principal.name} is for worker {principal.workers or 'none'}; it may not act as"
        f" worker {worker[:80]}"
    )


def check_placed(principal: Principal, task: str, worker: str | None, node: Node | None) -> None:
    """Raise Forbidden unless the principal may report for the worker that a task is on.

    For an agent only its own credential may, not a token for workers of the plain protocol.
    """
    is_agent = node is not None and node.worker.protocol is Protocol.SYNC
    if not principal.may_act_as(worker) or (is_agent and principal.role == "worker"):
        raise Forbidden(
            f"the token {principal.name} is for worker {principal.workers or 'none'}; task {task}"
            " is not on that worker"
        )
