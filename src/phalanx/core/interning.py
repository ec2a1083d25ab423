"""Keeps equal parts of jobs once in memory, because users submit the same roles many times.

The pools are bounded, so jobs without anything in common only cost a look-up. Large roles are not
kept: a pool of them would outlive their jobs.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from phalanx.core.model import Job, Task
from phalanx.core.spec.job import JobSpec, Role

H = TypeVar("H", bound=Hashable)
V = TypeVar("V")

_encode = msgspec.json.Encoder().encode
_roles_from = msgspec.json.Decoder(tuple[Role, ...]).decode


#: Larger roles, encoded, are not shared.
_SHARED_BYTES = 4096


@lru_cache(maxsize=4096)
def _same(value: H) -> H:
    """The first value that is equal to this one."""
    return value


@lru_cache(maxsize=4096)
def _mapping(items: tuple[tuple[str, V], ...]) -> dict[str, V]:
    return dict(items)


@lru_cache(maxsize=4096)
def _roles(encoded: bytes) -> tuple[Role, ...]:
    return tuple(
        replace(
            role,
            name=_same(role.name),
            command=_same(role.command),
            resources=_mapping(tuple(role.resources.items())),
            node_selector=_mapping(tuple(role.node_selector.items())),
        )
        for role in _roles_from(encoded)
    )


def encoded_bytes(spec: JobSpec) -> int:
    """The size of a specification, as it counts against the limit of its namespace."""
    return len(_encode(spec))


def shared_spec(spec: JobSpec) -> JobSpec:
    """An equal specification that shares its roles and common strings with other jobs."""
    encoded = _encode(spec.roles)
    return replace(
        spec,
        roles=_roles(encoded) if len(encoded) <= _SHARED_BYTES else spec.roles,
        namespace=_same(spec.namespace),
        queue=_same(spec.queue),
        complete_when=_same(spec.complete_when),
        min_resources=_mapping(tuple(spec.min_resources.items())),
    )


def shared_rows(job: Job, tasks: list[Task], spec: JobSpec | None = None) -> tuple[Job, list[Task]]:
    """Equal rows with shared strings, for rows that were just decoded from the store.

    `spec` is the specification of the job's array.
    """
    name = job.id if job.name == job.id else job.name
    job = replace(job, spec=spec or shared_spec(job.spec), name=name, owner=_same(job.owner))
    return job, [replace(task, job=job.id, role=_same(task.role)) for task in tasks]
