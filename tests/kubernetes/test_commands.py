"""`phalanx kube gangs|why|plan|queues` as users type them, on a real API server."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import LEASES
from phalanx.kube.leadership import LAST_LEADER, LEASE_NAME, SERVED_NAMES
from tests.acceptance.terminal import Said, Terminal
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.binaries import ROOT
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.pool import POOL, Pool
from tests.kubernetes.test_scheduler import (
    GPU,
    bound,
    eventually_event,
    gang,
    pending_reason,
    priority_class,
)
from tests.kubernetes.test_scheduler import scheduler as running_scheduler

TFJOB = ROOT / "examples" / "kubernetes" / "tfjob.yaml"


class KubeTerminal:
    """Types commands about the pods, nodes and scheduler of one pool."""

    def __init__(self, api: ApiServer, pool: Pool) -> None:
        self._terminal = Terminal(
            "http://127.0.0.1:1",
            KUBECONFIG=str(api.kubeconfig),
            PHALANX_KUBE_SCHEDULER_NAMES=pool.namespace,
            PHALANX_KUBE_NODES=f"{POOL}={pool.namespace}",
        )
        self._namespace = pool.namespace

    async def type(self, *words: str, stdin: str | None = None, **variables: str) -> Said:
        given = ("kube", *words)
        if words[0] != "queues" and "/" not in words[1:2]:
            given += ("-n", self._namespace)
        return await asyncio.to_thread(self._terminal.type, *given, stdin=stdin, **variables)

    async def elsewhere(self, namespace: str, *words: str) -> Said:
        """Type a command about another namespace."""
        return await asyncio.to_thread(self._terminal.type, "kube", *words, "-n", namespace)

    async def read(self, *words: str, stdin: str | None = None) -> Any:
        said = await self.type(*words, "--json", stdin=stdin)
        assert said.status == 0, said
        return json.loads(said.out)


@pytest.fixture
def at(api_server: ApiServer, pool: Pool) -> KubeTerminal:
    return KubeTerminal(api_server, pool)


def tfjob(pool: Pool) -> str:
    """The example, for the scheduler of the pool."""
    text = TFJOB.read_text().replace("schedulerName: phalanx", f"schedulerName: {pool.namespace}")
    assert yaml.safe_load(text)["kind"] == "TFJob"
    return text


async def test_a_plan_of_manifests_says_what_would_happen_and_creates_nothing(
    pool: Pool, at: KubeTerminal
) -> None:
    await pool.add_nodes(2, {GPU: "2"})
    said = await at.type("plan", "-f", "-", stdin=tfjob(pool))
    shortage = "the gang needs 8 GPUs, at most 4 fit on the empty cluster"
    assert said.out.splitlines() == [
        f"{pool.namespace}/tf-smoke-gpu: never starts: {shortage}",
        "remedy: add nodes with more GPUs, or request less",
        "alternative: with a minimum of 3 instead of 5, the gang would start now",
    ]
    await pool.add_nodes(2, {GPU: "2"})
    [forecast] = (await at.read("plan", "-f", "-", stdin=tfjob(pool)))["forecasts"]
    assert forecast["starts"]
    assert sorted(forecast["placements"]) == [
        "tf-smoke-gpu-ps-0",
        *(f"tf-smoke-gpu-worker-{n}" for n in range(4)),
    ]
    workers = [node for pod, node in forecast["placements"].items() if "worker" in pod]
    assert sorted(workers) == sorted(pool.nodes)
    assert await at.read("gangs") == []


async def test_why_repeats_what_the_scheduler_wrote_and_plans_again_on_demand(
    pool: Pool, at: KubeTerminal
) -> None:
    await pool.add_nodes(1, {GPU: "4"})
    async with running_scheduler(pool):
        for name in ("first-0", "first-1"):
            await pool.create_pod(name, requests={GPU: "1"}, **gang("first", 2))
        await bound(pool, "first-0", "first-1")
        for name in ("second-0", "second-1", "second-2"):
            await pool.create_pod(name, requests={GPU: "1"}, **gang("second", 3))
        for number in range(3):
            await pending_reason(pool, f"second-{number}", "2 of 3 pods fit (short of GPUs)")
        # Events are written after the reasons.
        await eventually_event(pool, "FailedScheduling", "2 of 3 pods fit (short of GPUs)")
    [written] = await at.read("why", "second-1")
    assert written["gang"]["name"] == "second"
    assert {pod["reason"] for pod in written["gang"]["pods"]} == {"Unschedulable"}
    assert any(event["reason"] == "FailedScheduling" for event in written["events"])
    now = (await at.type("why", "second", "--now")).out.splitlines()
    assert now[:3] == [
        f"gang {pool.namespace}/second: stays pending: 2 of 3 pods fit (short of GPUs)",
        "remedy: wait for GPUs to become free, or add nodes",
        "alternative: with a minimum of 2 instead of 3, the gang would start now",
    ]
    assert now[4] == "queue default, priority 0, 0 of 3 pods bound, minimum 3"
    [queue] = [each for each in await at.read("queues") if each["name"] == "default"]
    assert (queue["used"]["gpu"], queue["running"], queue["pending"]) == ("2", 1, 1)


async def test_on_a_narrow_terminal_nothing_is_cut_and_reasons_have_lines_of_their_own(
    pool: Pool, at: KubeTerminal
) -> None:
    await pool.add_nodes(1, {GPU: "1"})
    name = f"{'long-' * 9}name"
    async with running_scheduler(pool):
        for number in range(2):
            await pool.create_pod(f"{name}-{number}", requests={GPU: "1"}, **gang(name, 2))
        for number in range(2):
            await pending_reason(pool, f"{name}-{number}", "never fits")
        await pool.create_pod("alone", requests={GPU: "1"})
        await bound(pool, "alone")
    narrow = (await at.type("gangs", COLUMNS="80")).out.splitlines()
    headings = ["GANG", "QUEUE", "PRIORITY", "MIN", "BOUND", "STATE", "AGE"]
    assert narrow[0].split() == ["GANG", "MIN", "BOUND", "STATE", "AGE"]
    assert narrow[1].split()[:-1] == [name, "2", "0/2", "pending"]
    assert all(len(line) <= 80 for line in narrow)
    reason = " ".join(line.strip() for line in narrow[2:-1])
    never = "never fits: the gang needs 2 GPUs, at most 1 fit on the empty cluster"
    assert re.fullmatch(re.escape(never) + r" \[\d+[sm] ago\]", reason)
    assert narrow[-1].split()[:-1] == ["alone", "1", "1/1", "running"]
    wide = (await at.type("gangs", COLUMNS="160")).out.splitlines()
    assert wide[0].split() == [*headings, "REASON"]
    assert "never fits" in wide[1]
    piped = (await at.type("gangs")).out.splitlines()
    assert never in piped[1]
    said = (await at.type("why", name, COLUMNS="80")).out.splitlines()
    [pod] = [line for line in said if line.startswith(f"{name}-1")]
    assert pod.split() == [f"{name}-1", "pending", "-", "Unschedulable"]
    queues = (await at.type("queues", COLUMNS="80")).out.splitlines()
    assert queues[0].split() == ["QUEUE", "RUNNING", "PENDING", "WEIGHT"]
    assert any(line.startswith("  used gpu 1") for line in queues)
    assert all(len(line) <= 80 for line in queues)


async def write_lease(pool: Pool, holder: str, renewed: datetime) -> None:
    """The lease of a scheduler of this pool."""
    written = renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": written}
    annotations = {SERVED_NAMES: f"other,{pool.namespace}", LAST_LEADER: "phalanx-1"}
    path = LEASES.path(pool.namespace)
    lease = {"metadata": {"name": LEASE_NAME, "annotations": annotations}, "spec": spec}
    try:
        await pool.api.request("POST", path, lease)
    except ApiStatusError:
        await pool.api.patch(f"{path}/{LEASE_NAME}", lease)


@pytest.mark.parametrize("command", ["gangs", "queues", "why alone", "why alone --now"])
async def test_commands_say_in_one_line_that_no_scheduler_leads(
    pool: Pool, at: KubeTerminal, command: str
) -> None:
    await pool.create_pod("alone")
    words = command.split()
    name = pool.namespace
    assert (await at.type(*words)).err == (
        f"warning: no scheduler has ever served schedulerName {name} in this cluster; install it"
        " with `kubectl apply -k deploy/kubernetes`\n"
    )
    assert (await at.type(*words, "--quiet")).err == ""
    now = datetime.now(UTC)
    await write_lease(pool, "phalanx-1", now + timedelta(hours=1))
    assert (await at.type(*words)).err == ""
    for holder in ("phalanx-1", ""):
        ended = now - timedelta(hours=5, minutes=5)
        renewed = ended - timedelta(seconds=15) if holder else ended
        await write_lease(pool, holder, renewed)
        said = (await at.type(*words)).err
        assert said.startswith(
            f"warning: no scheduler serves schedulerName {name} now: phalanx-1 was the last, until"
            " 5h "
        )
        assert said.endswith(" ago; pods stay pending, and their reasons may be out of date\n")


async def test_why_of_a_gang_that_is_evicted_says_by_whom_and_when_it_starts_again(
    pool: Pool, at: KubeTerminal
) -> None:
    [node] = await pool.add_nodes(1, {GPU: "2"})
    await priority_class(pool, "urgent", 1000)
    async with running_scheduler(pool):
        for name in ("low-0", "low-1"):
            await pool.create_pod(name, requests={GPU: "1"}, **gang("low", 2))
        await bound(pool, "low-0", "low-1")
        urgent = f"{pool.namespace}-urgent"
        await pool.create_pod("high", requests={GPU: "2"}, priorityClassName=urgent)
        victims = f"2 preempted pods of gang {pool.namespace}/low"
        kind = await pending_reason(pool, "high", f"starts when {victims} have stopped: ")
        assert kind == "WaitingForVictims"

        async def are_stopping() -> bool:
            return all([(await pool.read_pod(f"low-{n}")).is_terminating for n in range(2)])

        await eventually(are_stopping, PATIENCE_S)
    said = await at.type("why", "low")
    assert said.out.startswith(
        f"gang {pool.namespace}/low: stopping: preempted by higher-priority gang"
        f" {pool.namespace}/high (2 pods stopping)\n"
        "starts again: not by itself, because no controller replaces low-0, low-1; create the pods"
        " again\n"
    )
    [row] = [each for each in await at.read("gangs") if each["name"] == "low"]
    assert (row["state"], row["pods"][0]["node"]) == ("stopping", node)
    assert row["pods"][0]["preemptor"] == f"{pool.namespace}/high"


async def test_a_plan_names_the_gangs_that_it_would_evict(pool: Pool, at: KubeTerminal) -> None:
    await pool.add_nodes(1, {GPU: "2"})
    await priority_class(pool, "urgent", 1000)
    async with running_scheduler(pool):
        for name in ("low-0", "low-1"):
            await pool.create_pod(name, requests={GPU: "1"}, **gang("low", 2))
        await bound(pool, "low-0", "low-1")
    pod = pool.pod("high", requests={GPU: "2"}, priorityClassName=f"{pool.namespace}-urgent")
    manifest = json.dumps({"apiVersion": "v1", "kind": "Pod", **pod})
    said = await at.type("plan", "-f", "-", stdin=manifest)
    assert f"high: evicts {pool.namespace}/low (2 pods)" in said.out
    assert "and starts when the evicted pods have stopped" in said.out
    await bound(pool, "low-0", "low-1")


MIXED = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: planned-only}
value: 7
---
apiVersion: v1
kind: List
items:
- apiVersion: batch.volcano.sh/v1alpha1
  kind: Job
  metadata: {name: ring}
  spec:
    priorityClassName: planned-only
    tasks:
    - {name: ps, replicas: 1, template: {spec: {containers: [{name: a, image: a}]}}}
    - {name: worker, replicas: 2, template: {spec: {containers: [{name: a, image: a}]}}}
- {kind: Service, apiVersion: v1, metadata: {name: web}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: torch}
spec:
  pytorchReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [{name: pytorch, image: a}]}}}
"""


async def test_a_plan_creates_the_pods_that_controllers_would_create(
    pool: Pool, at: KubeTerminal
) -> None:
    await pool.add_nodes(1)
    planned = await at.read("plan", "-f", "-", stdin=MIXED)
    assert {each["name"]: sorted(each["placements"]) for each in planned["forecasts"]} == {
        f"{pool.namespace}/ring": ["ring-ps-0", "ring-worker-0", "ring-worker-1"],
        f"{pool.namespace}/torch-worker-0": ["torch-worker-0"],
        f"{pool.namespace}/torch-worker-1": ["torch-worker-1"],
    }
    texts = [
        "Service web is ignored: it has no pods",
        f"Job ring has schedulerName volcano; planned as if it were {pool.namespace}",
        "PyTorchJob torch has schedulerName default-scheduler",
        "PyTorchJob torch names no gang, so its pods are placed one by one",
    ]
    assert len(planned["warnings"]) == len(texts)
    assert all(map(str.startswith, planned["warnings"], texts))


async def test_mistakes_are_answered_with_a_cure(pool: Pool, at: KubeTerminal) -> None:
    empty = await at.type("gangs")
    assert (empty.status, empty.out) == (0, "")
    assert (
        f"no pods in namespace {pool.namespace} have schedulerName {pool.namespace};" in empty.err
    )
    unknown = await at.type("why", "nobody")
    assert unknown.status == 3
    missing = f"no pod or gang nobody in namespace {pool.namespace}; `phalanx kube gangs -A`"
    assert missing in unknown.err
    await pool.create_pod("trainer-0", **gang("trainer", 1))
    near = await at.type("why", "trainre")
    assert near.status == 3
    assert "; did you mean trainer or trainer-0?" in near.err
    for command in ("gangs", "why trainer"):
        elsewhere = await at.elsewhere(f"{pool.namespace}x", *command.split())
        assert elsewhere.status == 3
        assert f"does not exist; did you mean {pool.namespace}?" in elsewhere.err
    await pool.create_pod("other", schedulerName="default-scheduler")
    foreign = await at.type("why", "other")
    assert foreign.status == 4
    assert f"set it to {pool.namespace}, or pass --scheduler-names" in foreign.err
    again = await at.type(
        *("plan", "-f", "-"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "Pod", **pool.pod("other")}),
    )
    assert again.status == 2
    assert f"Pod other has the pod other already; `phalanx kube why {pool.namespace}" in again.err
    wrong = await at.type("plan", "-f", "-", stdin="kind: Pod\nspec: {containers: [{image: a}]}")
    assert wrong.status == 2
    assert "spec.containers[0].name: Required value" in wrong.err
    nodes = await at.type("queues", "--nodes", "a in b")
    assert nodes.status == 2
    assert "phalanx: --nodes is 'a in b', which is not a label selector (" in nodes.err
    assert "write it like pool=training" in nodes.err
    ignored = await at.type("plan", "-f", "-", stdin="kind: Service\nmetadata: {name: web}")
    assert "nothing here has pods (Service web); write pods or jobs" in ignored.err


def test_without_a_cluster_the_commands_say_how_to_choose_one(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "current-context": "gone",
                "contexts": [{"name": "gone", "context": {"cluster": "gone"}}],
                "clusters": [{"name": "gone", "cluster": {"server": "http://127.0.0.1:1"}}],
            }
        )
    )
    terminal = Terminal("http://127.0.0.1:1", KUBECONFIG=str(config), HOME=str(tmp_path))
    gone = terminal.type("kube", "gangs")
    assert gone.status == 5
    assert gone.err == (
        "phalanx: no answer from http://127.0.0.1:1: cannot connect: Connection refused; check"
        " that the cluster runs, or choose another with --kubeconfig or --context\n"
    )
    other = terminal.type("kube", "why", "x", "--context", "other")
    assert other.status == 2
    assert "has no context other; it has: gone" in other.err
    missing = terminal.type("kube", "queues", KUBECONFIG=str(tmp_path / "missing"))
    assert missing.status == 2
    assert "use --kubeconfig FILE or set KUBECONFIG" in missing.err
