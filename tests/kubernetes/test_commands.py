"""`phalanx kube gangs|why|plan|queues` as users type them, on a real API server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.terminal import Said, Terminal
from tests.kubernetes.binaries import ROOT
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.pool import POOL, Pool
from tests.kubernetes.test_scheduler import GPU, bound, gang, pending_reason, priority_class
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
        await pending_reason(pool, "second-2", "2 of 3 pods fit (short of GPUs)")
    listed = (await at.type("gangs", COLUMNS="80")).out.splitlines()
    assert all(len(line) <= 80 for line in listed)
    assert [line.split()[:5] for line in listed] == [
        ["GANG", "QUEUE", "MIN", "BOUND", "STATE"],
        ["second", "default", "3", "0/3", "pending"],
        ["first", "default", "2", "2/2", "running"],
    ]
    [written] = await at.read("why", "second-1")
    assert written["gang"]["name"] == "second"
    assert {pod["reason"] for pod in written["gang"]["pods"]} == {"Unschedulable"}
    assert any(event["reason"] == "FailedScheduling" for event in written["events"])
    now = (await at.type("why", "second", "--now")).out.splitlines()
    assert now[:3] == [
        f"gang {pool.namespace}/second: stays pending: 2 of 3 pods fit (short of GPUs)",
        "remedy: wait for GPUs to become free, or add nodes that have it",
        "alternative: with a minimum of 2 instead of 3, the gang would start now",
    ]
    assert now[4] == "queue default, priority 0, 0 of 3 pods bound, minimum 3"
    [queue] = [each for each in await at.read("queues") if each["name"] == "default"]
    assert (queue["used"]["gpu"], queue["running"], queue["pending"]) == ("2", 1, 1)


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
    unknown = await at.type("why", "nobody")
    assert unknown.status == 3
    assert f"no pod or gang nobody in namespace {pool.namespace}" in unknown.err
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
    assert "check that the cluster runs, or choose another with --kubeconfig or --con" in gone.err
    other = terminal.type("kube", "why", "x", "--context", "other")
    assert other.status == 2
    assert "has no context other; it has: gone" in other.err
    missing = terminal.type("kube", "queues", KUBECONFIG=str(tmp_path / "missing"))
    assert missing.status == 2
    assert "use --kubeconfig FILE or set KUBECONFIG" in missing.err
