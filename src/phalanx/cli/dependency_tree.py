"""The dependencies of a job as trees: the jobs that it runs after, and those that run after it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from phalanx.cli import formatting
from phalanx.cli.visible_text import visible

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.jobs import JobDetail, RelatedJob

#: The most jobs that are fetched for one tree.
_MAX_JOBS = 50


def dependency_trees(client: "Client", job: "JobDetail") -> list[Tree]:
    """The trees of a job; empty for a job without dependencies."""
    trees = []
    for title, neighbours in (("runs after", _dependencies), ("runs before", _dependants)):
        if neighbours(job):
            tree = Tree(Text(title, style="dim"))
            _add(client, tree, job, neighbours, {job.id})
            trees.append(tree)
    return trees


def _dependencies(job: "JobDetail") -> "Iterable[RelatedJob]":
    return job.after


def _dependants(job: "JobDetail") -> "Iterable[RelatedJob]":
    return job.dependants


def _add(
    client: "Client",
    tree: Tree,
    of: "JobDetail",
    neighbours: "Callable[[JobDetail], Iterable[RelatedJob]]",
    visited: set[str],
) -> None:
    from phalanx.client import NotFoundError  # noqa: PLC0415

    for job in neighbours(of):
        branch = tree.add(_label(job, _condition(of, job)))
        if job.id in visited or job.phase is None:
            continue
        if len(visited) >= _MAX_JOBS:
            branch.add(Text("…", style="dim"))
            continue
        visited.add(job.id)
        try:
            detail = client.get(job.id)
        except NotFoundError:
            continue  # deleted since it was listed
        _add(client, branch, detail, neighbours, visited)


def _condition(job: "JobDetail", other: "RelatedJob") -> str:
    """Under which condition the job runs after the other one, unless it is its success."""
    for field in ("afterany", "afternotok"):
        if other.id in job.spec.get(field, ()):
            return f" ({field})"
    return ""


def _label(job: "RelatedJob", condition: str) -> Text:
    name = "" if job.name in ("", job.id) else f" {job.name}"
    phase = formatting.styled(job.phase) if job.phase else Text("deleted", style="dim")
    return Text.assemble(visible(f"{job.id}{name} "), phase, (condition, "dim"))
