"""A check on jobs that start together: all of them have to name the same group."""

from collections.abc import Sequence

from phalanx.manifest.draft import JobDraft
from phalanx.manifest.problems import ProblemList


def check_groups(drafts: Sequence[JobDraft], problems: ProblemList) -> None:
    """Report each job that names a job with a different group."""
    by_name = {draft.full_name: draft for draft in drafts}
    for draft in drafts:
        own = _group(draft)
        for name in own:
            other = by_name.get(name)
            if other is None or other is draft:
                continue
            theirs = _group(other)
            if theirs and theirs | {name} != own | {draft.full_name}:
                problems.add(
                    draft.origin("group"),
                    f"names {name}, which names another group: {', '.join(sorted(theirs))}; write"
                    " the same list of all jobs on each of them",
                )
                break


def _group(draft: JobDraft) -> set[str]:
    names = draft.fields.get("group")
    return set(names) if isinstance(names, list) else set()
