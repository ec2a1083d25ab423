"""Equal parts of jobs kept once: users submit the same roles over and over.

The pool is bounded, so that jobs which have nothing in common cost nothing but a look.
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


@lru_cache(maxsize=4096)
def _same(value: H) -> H:
    """The first of all equal values."""
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


def shared_spec(spec: JobSpec) -> JobSpec:
    """The same specification, sharing its roles and common words with others."""
    return replace(
        spec,
        roles=_roles(_encode(spec.roles)),
        namespace=_same(spec.namespace),
        queue=_same(spec.queue),
        complete_when=_same(spec.complete_when),
    )


def shared_rows(job: Job, tasks: list[Task]) -> tuple[Job, list[Task]]:
    """Rows that came from the store, where every string is its own."""
    name = job.id if job.name == job.id else job.name
    job = replace(job, spec=shared_spec(job.spec), name=name, owner=_same(job.owner))
    return job, [replace(task, job=job.id, role=_same(task.role)) for task in tasks]
