"""Files with an invalid document after a valid one: each problem is named by file, document, path,
and cure, and nothing of the file is stored."""

from pathlib import Path

import pytest

from phalanx.client import Client
from tests.acceptance.terminal import Server, Terminal
from tests.manifests import pod

GOOD = "{name: kept, roles: {a: {command: x}}}\n"
PREFIX = "pod-group.scheduling.sigs.k8s.io"
GROUP = """
---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: web}
spec: {minMember: 1}
"""
IN_GROUP = "{scheduling.x-k8s.io/pod-group: web}"
CRON = """
---
apiVersion: lattice.dev/v1alpha1
kind: LatticeJob
metadata: {name: nightly}
spec:
  schedule: "0 2 * * *"
  timeZone: UTC
  tasks: {w: {workload: {containers: {main: {image: i, command: [train]}}}}}
"""


def labelled(name: str, groups: str = "") -> str:
    more = groups and f", {PREFIX}/groups: '{groups}'"
    return f'{{{PREFIX}/name: {name}, {PREFIX}/min-available: "2"{more}}}'


def circle() -> str:
    """Three gangs, each of which names the next."""
    text = ""
    for name, after in (("a", "b"), ("b", "c"), ("c", "a")):
        for n in range(2):
            text += pod(f"{name}-{n}", labels=labelled(name, f'["default/{after}"]'))
    return text


#: The documents after the good one; where it is wrong; what is said; what to do.
WRONG: dict[str, tuple[str, str, str, str]] = {
    "an unknown kind": (
        "---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}\n",
        "document 2:",
        'the kind "Deployment" of apiVersion "apps/v1" is not supported',
        "write a job in the native form",
    ),
    "another namespace": (
        GROUP + pod("web-0", labels=IN_GROUP, namespace="other"),
        'document 3: metadata.labels["scheduling.x-k8s.io/pod-group"]',
        "is web, a PodGroup of namespace default, but the pod is in namespace other",
        "use one namespace for both",
    ),
    "two priorities in one gang": (
        pod("a-0", labels=labelled("a"), spec="priority: 5")
        + pod("a-1", labels=labelled("a"), spec="priority: 7"),
        "document 3: spec.priority",
        "gives a-1 priority 7, but a-0 has priority 5",
        "use the same value in all members of a gang",
    ),
    "a minimum of none": (
        GROUP.replace("minMember: 1", "minMember: 0") + pod("web-0", labels=IN_GROUP),
        "document 2: spec.minMember",
        "is 0",
        "at least 1",
    ),
    "groups that are not JSON": (
        pod("a-0", labels=labelled("a", '["default/a"')),
        f'document 2: metadata.labels["{PREFIX}/groups"]',
        "which is not valid JSON",
        'write a JSON list, like ["default/gang-a"',
    ),
    "groups in a circle": (
        circle(),
        f'document 2: metadata.labels["{PREFIX}/groups"]',
        "names default/b, which names another group: default/c",
        "write the same list of all jobs on each of them",
    ),
    "a cron line with six fields": (
        CRON.replace("0 2 * * *", "0 0 2 * * *"),
        "document 2: spec.schedule",
        "the number of its fields is 6",
        "write five",
    ),
    "a time zone that does not exist": (
        CRON.replace("UTC", "Mars/Olympus"),
        "document 2: spec.timeZone",
        "is not a known time zone",
        "write one like Europe/Zurich",
    ),
    "a native cron line with six fields": (
        "---\n{name: n, schedule: {cron: '0 0 2 * * *'}, roles: {a: {command: x}}}\n",
        "document 2: schedule.cron",
        "the number of its fields is 6",
        "write five",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_every_problem_has_its_place_and_its_cure(
    server: Server, terminal: Terminal, tmp_path: Path, what: str
) -> None:
    text, where, told, cure = WRONG[what]
    file = tmp_path / "jobs.yaml"
    file.write_text(GOOD + text)
    said = terminal.type("submit", "-f", str(file), "--ignore-image")
    assert (said.status, said.out) == (2, "")
    line = said.err.splitlines()[0]
    assert line.startswith(f"phalanx: {file}, {where}")
    assert told in line
    assert cure in line

    with Client(server.url) as client:
        assert ([*client.jobs()], client.crons()) == ([], [])
