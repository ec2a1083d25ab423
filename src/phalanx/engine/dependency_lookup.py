"""The jobs that new jobs run after: found by id or by name, and how those ended that have.

A name means the unfinished job of that name, otherwise the newest one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.core.array import elements_of
from phalanx.core.cluster import Cluster
from phalanx.core.model import Phase
from phalanx.core.spec.job import DEPENDENCY_FIELDS, JobSpec
from phalanx.engine.engine import Engine
from phalanx.store.protocol import JobQuery, Store

#: Namespace and name of a job.
FullName = tuple[str, str]


class Dependencies(NamedTuple):
    """What was found outside of a turn. It may have changed when the turn begins."""

    phases: Mapping[str, Phase | None]  #: by id: how it ended; None for an unfinished job
    named: Mapping[FullName, str]  #: the ids of the jobs that were given by name

    def is_outdated(self, cluster: Cluster) -> bool:
        """Whether a job has ended since."""
        return any(phase is None and not cluster.has_job(job) for job, phase in self.phases.items())

    def resolved(self, spec: JobSpec, cluster: Cluster) -> JobSpec:
        """The job with the ids of its dependencies. One that does not exist stays as written."""
        if not spec.dependencies:
            return spec
        ids = {
            field: tuple(
                dict.fromkeys(self._id(spec, each, cluster) for each in getattr(spec, field))
            )
            for field in DEPENDENCY_FIELDS
        }
        return replace(spec, **ids)

    def ended(self, spec: JobSpec) -> dict[str, Phase]:
        """How those of its dependencies ended that have."""
        phases = {job: self.phases.get(job) for job in spec.dependencies}
        return {job: phase for job, phase in phases.items() if phase is not None}

    def _id(self, spec: JobSpec, reference: str, cluster: Cluster) -> str:
        if reference in self.phases or cluster.has_job(reference):
            return reference
        job, element = _split(reference)
        name = full_name(spec, job)
        known = cluster.names.get(name) or self.named.get(name)
        return reference if known is None else known + element


def full_name(spec: JobSpec, reference: str) -> FullName:
    """A name without a namespace is one of the job's own namespace."""
    namespace, slash, name = reference.partition("/")
    return (namespace, name) if slash else (spec.namespace, reference)


def _split(reference: str) -> tuple[str, str]:
    """The name or id of a job, and `[INDEX]` if an element of an array is meant."""
    job, bracket, rest = reference.partition("[")
    return job, bracket + rest


async def look_up(engine: Engine, store: Store, specs: Iterable[JobSpec]) -> Dependencies:
    """The dependencies of these jobs. Those that do not exist are left out."""
    references = {
        (each, full_name(spec, _split(each)[0])) for spec in specs for each in spec.dependencies
    }
    if not references:
        return Dependencies({}, {})
    summaries = await store.job_summaries({reference for reference, _ in references})
    phases = {job: each.phase if each.is_finished else None for job, each in summaries.items()}
    names = {name for reference, name in references if reference not in phases}
    live = await engine.do(lambda turn: {name: turn.cluster.names.get(name) for name in names})
    named: dict[FullName, str] = {}
    for name, job in live.items():
        if job is not None:
            named[name], phases[job] = job, None
            continue
        query = JobQuery(namespace=name[0], name=name[1])
        for ended in (await store.finished_jobs(query, limit=1)).jobs:
            named[name], phases[ended.id] = ended.id, ended.phase
    phases |= await _elements(store, references, phases, named)
    return Dependencies(phases, named)


async def _elements(
    store: Store,
    references: Iterable[tuple[str, FullName]],
    phases: Mapping[str, Phase | None],
    named: Mapping[FullName, str],
) -> dict[str, Phase]:
    """How the elements ended whose arrays have ended."""
    arrays: dict[str, str] = {}
    for reference, name in references:
        job, element = _split(reference)
        if element and reference not in phases:
            array = named.get(name, job)
            arrays[array + element] = array
    if not arrays:
        return {}
    stored = await store.job_summaries({*arrays, *arrays.values()})
    ended = {job: each.phase for job, each in stored.items() if each.is_finished}
    found = {element: ended[element] for element in arrays if element in ended}
    # An element that never ran is not stored, and ended as its array did.
    for element, array in arrays.items():
        unsuccessful = ended.get(array, Phase.DONE) is not Phase.DONE
        if element not in found and unsuccessful and await _is_in(store, element, array):
            found[element] = ended[array]
    return found


async def _is_in(store: Store, element: str, array: str) -> bool:
    """Whether the array was submitted with this element."""
    row = await store.job(array)
    index = element.partition("[")[2].removesuffix("]")
    if row is None or not row[0].is_array or not index.isdecimal():
        return False
    return elements_of(row[0]).position(int(index)) is not None
