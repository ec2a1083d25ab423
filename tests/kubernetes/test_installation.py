"""`deploy/kubernetes` on an API server with RBAC: valid, sufficient, and with no right too many."""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio
import yaml

from phalanx.kube import rights
from phalanx.kube.api.client import ApiClient
from phalanx.kube.api.errors import ApiStatusError
from phalanx.kube.api.resources import PODS, VOLCANO, queues
from phalanx.kube.connection.kubeconfig import find_connection
from phalanx.kube.model.queues import cluster_queue
from phalanx.kube.objects.gang import KubeQueue
from phalanx.kube.writes.binder import Binder, BindResult
from phalanx.kube.writes.calls import Bind, PodReference
from phalanx.kube.writes.rounds import BindRound
from tests.acceptance.pages import blocks
from tests.acceptance.terminal import Terminal
from tests.integration.server.waiting import PATIENCE_S, eventually
from tests.kubernetes.binaries import ROOT
from tests.kubernetes.control_plane import ApiServer, ControlPlane
from tests.kubernetes.custom_resources import definition
from tests.kubernetes.custom_resources import install as install_crd
from tests.kubernetes.installation import (
    NAMESPACE,
    USER,
    account_kubeconfig,
    apply,
    install,
    installed,
    installed_objects,
    installed_scheduler,
    until_allowed,
)
from tests.kubernetes.pool import Pool
from tests.kubernetes.scheduler_process import SchedulerProcess
from tests.kubernetes.test_preemption import eventually_bound
from tests.kubernetes.test_scheduler import GPU, bound, gang, pending_reason, pods_of
from tests.kubernetes.test_scheduler_process import start
from tests.kubernetes.training_operator import TrainingOperator

VIEWER = "jane"
#: Kinds of other projects that the scheduler reads where they are installed.
FOREIGN = [
    definition("scheduling.x-k8s.io", "PodGroup", has_status=True),
    definition("scheduling.sigs.k8s.io", "PodGroup"),
    definition("scheduling.volcano.sh", "PodGroup", version="v1beta1"),
    definition(
        *("scheduling.volcano.sh", "Queue"), has_status=True, version="v1beta1", scope="Cluster"
    ),
]


class Right(NamedTuple):
    group: str
    resource: str
    verb: str


@pytest.fixture(scope="module")
def plane(
    control_plane_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("installation") / "plane"
    plane = ControlPlane(control_plane_binary, folder, audited=(USER, "admin"))
    try:
        asyncio.run(_install(plane.address))
        yield plane
    finally:
        plane.stop()


async def _install(api: ApiServer) -> None:
    async with ApiClient(find_connection(api.kubeconfig)) as client:
        await install(client)
        for crd in (installed("CustomResourceDefinition"), *FOREIGN):
            await install_crd(client, crd)


@pytest_asyncio.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[ApiClient]:
    async with ApiClient(find_connection(plane.address.kubeconfig)) as client:
        yield client


@pytest_asyncio.fixture
async def team(admin: ApiClient) -> AsyncIterator[Pool]:
    """Nodes and a namespace, whose pods have the scheduler name of the Deployment."""
    pool = Pool(admin, f"team-{uuid4().hex[:8]}")
    await pool.open()
    yield pool
    await pool.close()


def granted(*names: str) -> set[Right]:
    """The rights in the roles with these names."""
    roles = [each for each in installed_objects() if each["kind"] in ("ClusterRole", "Role")]
    return {
        Right(group, resource, verb)
        for role in roles
        if role["metadata"]["name"] in names
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests_of(plane: ControlPlane, user: str) -> list[tuple[Right, int]]:
    """What a user has requested, each with the status of the answer."""
    found = []
    *lines, _unfinished = (Path(plane.address.folder) / "audit.log").read_text().split("\n")
    for line in lines:
        entry = json.loads(line)
        about = entry.get("objectRef")
        name = entry.get("impersonatedUser", entry["user"])["username"]
        if about is not None and name == user:
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            right = Right(about.get("apiGroup", ""), resource, entry["verb"])
            found.append((right, entry["responseStatus"]["code"]))
    return found


async def create(team: Pool, name: str, **fields: Any) -> None:
    pod = team.pod(name, **fields, terminationGracePeriodSeconds=0)
    del pod["spec"]["nodeSelector"]
    pod["spec"]["schedulerName"] = "phalanx"
    await team.api.create(PODS, pod, team.namespace)


async def test_the_scheduler_needs_every_right_of_its_roles_and_no_other(
    plane: ControlPlane, admin: ApiClient, team: Pool, tmp_path: Path
) -> None:
    """A gang from pending to bound, an eviction, and conditions, as the service account."""
    kubeconfig = await account_kubeconfig(admin, plane.address)
    scheduler = installed_scheduler(kubeconfig, "first", tmp_path / "log")
    try:
        await run_everything(team, scheduler)
        await check_queue_status(team)
        await run_every_dialect(team)
        await bind_a_bound_pod(team, kubeconfig)
        await until_used(plane, USER, granted("phalanx-scheduler"))
    finally:
        scheduler.process.stop()
    seen = requests_of(plane, USER)
    refused = sorted({right for right, code in seen if code == 403})
    assert not refused, f"the roles lack {refused}; the scheduler printed {log_of(scheduler)}"
    # Every user may ask what it may do.
    used = {right for right, _ in seen if right.resource != "selfsubjectaccessreviews"}
    assert used == granted("phalanx-scheduler")
    asked = {Right(*each[:3]) for each in (*rights.RIGHTS, *rights.CUSTOM_RIGHTS)}
    assert asked == granted("phalanx-scheduler"), "what is checked at the start"


async def test_a_scheduler_without_rights_names_them_and_the_file_to_apply(
    plane: ControlPlane, tmp_path: Path
) -> None:
    config = yaml.safe_load(plane.address.kubeconfig.read_text())
    config["users"][0]["user"]["as"] = "joe"
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(yaml.safe_dump(config))
    status, said = await asyncio.to_thread(start, "--kubeconfig", str(kubeconfig))
    assert status == 4
    assert said.startswith("phalanx: user joe may not create events, pods/binding, pods/eviction; ")
    assert "; list and watch csinodes, namespaces, nodes, persistentvolumeclaims, " in said
    assert " in the whole cluster; nor create, get and update leases in namespace default" in said
    assert said.endswith(
        "; apply deploy/kubernetes/rbac.yaml, which grants what the scheduler needs, or use its"
        " service account\n"
    )


def log_of(scheduler: SchedulerProcess) -> str:
    return scheduler.log.read_text()[-2000:]


async def apply_queue(team: Pool, version: str, name: str, **spec: Any) -> None:
    metadata = {"name": name}
    await apply(
        team.api, {"apiVersion": version, "kind": "Queue", "metadata": metadata, "spec": spec}
    )


async def until_queue_status(team: Pool, group: str, name: str, **wanted: Any) -> dict[str, Any]:
    """Wait until the status of a queue, with the message of its condition, has these fields."""
    version = "v1beta1" if group == VOLCANO else "v1alpha1"
    status: dict[str, Any] = {}

    async def is_shown() -> bool:
        status.clear()
        status.update((await team.api.get(queues(group, version), name)).status)
        conditions = status.get("conditions", [{}])
        status["message"] = conditions[0].get("message")
        return {field: status.get(field) for field in wanted} == wanted

    await eventually(is_shown, PATIENCE_S, lambda: f"the status of {name} is {status}")
    return status


async def check_queue_status(team: Pool) -> None:
    await apply_queue(team, "phalanx.dev/v1alpha1", "vision")
    await create(team, "vision", requests={"cpu": "1"}, labels={"phalanx.dev/queue": "vision"})
    used = {"cpu": "1"}
    part = {"running": 1, "pending": 0, "used": used, "deserved": used}
    status = await until_queue_status(team, "phalanx.dev", "vision", **part)
    assert status["schedulers"] == {"phalanx": part}
    assert status["conditions"][0]["status"] == "True"
    await apply_queue(team, "phalanx.dev/v1alpha1", "vision", parent="missing")
    problem = "its parent missing does not exist"
    await until_queue_status(team, "phalanx.dev", "vision", message=problem)


async def run_everything(team: Pool, scheduler: SchedulerProcess) -> None:
    await eventually(scheduler.leads, PATIENCE_S, lambda: log_of(scheduler))
    await check_probes(scheduler)
    await team.add_nodes(2, {GPU: "1"})
    for name in ("low-0", "low-1"):
        await create(team, name, requests={GPU: "1"}, **gang("low", 2))
    await bound(team, "low-0", "low-1")
    await create(team, "big", requests={GPU: "4"})
    assert await pending_reason(team, "big", "never fits") == "Unschedulable"
    critical = {"priorityClassName": "system-cluster-critical"}
    for name in ("high-0", "high-1"):
        await create(team, name, requests={GPU: "1"}, **gang("high", 2), **critical)
    await bound(team, "high-0", "high-1")


async def run_every_dialect(team: Pool) -> None:
    """A gang with a PodGroup of each API that the cluster serves; the gang `low` has none, so the
    scheduler has made one, which it deletes with the last pod."""
    metadata = {"name": "solo", "namespace": team.namespace}
    groups = {
        "scheduling.k8s.io/v1alpha2": {"schedulingPolicy": {"gang": {"minCount": 1}}},
        "scheduling.sigs.k8s.io/v1alpha1": {"minMember": 1},
        "scheduling.volcano.sh/v1beta1": {"minMember": 1, "queue": "batch"},
    }
    await apply_queue(team, "scheduling.volcano.sh/v1beta1", "batch")
    for version, spec in groups.items():
        group = {"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
        await apply(team.api, group)
    await create(team, "native", schedulingGroup={"podGroupName": "solo"})
    await create(team, "labels", labels={"pod-group.scheduling.sigs.k8s.io": "solo"})
    await create(team, "volcano", annotations={"scheduling.k8s.io/group-name": "solo"})
    params = {"labelSelector": "pod-group.scheduling.sigs.k8s.io/name=high"}
    path = PODS.path(team.namespace)
    await team.api.request("DELETE", path, params={**params, "gracePeriodSeconds": 0})

    await eventually_bound(team, "native")
    allocated = await until_queue_status(team, VOLCANO, "batch", running=1, pending=0)
    assert "allocated" in allocated


async def until_used(plane: ControlPlane, user: str, rights: set[Right]) -> None:
    """Wait until the audit log shows that all these rights were used."""
    left = rights

    async def are_used() -> bool:
        nonlocal left
        left = rights - {right for right, code in requests_of(plane, user) if code < 400}
        return not left

    await eventually(are_used, PATIENCE_S, lambda: f"not used: {sorted(left)}")


async def check_probes(scheduler: SchedulerProcess) -> None:
    [container] = installed("Deployment")["spec"]["template"]["spec"]["containers"]
    paths = [container[each]["httpGet"]["path"] for each in ("livenessProbe", "readinessProbe")]

    async def succeed() -> bool:
        return [await scheduler.get(path) for path in paths] == ["ok\n", "ok\n"]

    await eventually(succeed, PATIENCE_S)


async def bind_a_bound_pod(team: Pool, kubeconfig: Path) -> None:
    """The scheduler reads a pod whose bind was refused."""
    [pod] = [each for each in await pods_of(team) if each.metadata.name == "native"]
    async with ApiClient(find_connection(kubeconfig)) as client:
        where = PodReference(team.namespace, "native", pod.metadata.uid)
        bind = Bind(where, "elsewhere")
        outcome = await Binder(client, lambda: True).bind(bind, BindRound("again", 1, 1))
    assert outcome.result is BindResult.ELSEWHERE


async def test_pods_of_the_deployment_pass_the_restricted_standard(admin: ApiClient) -> None:
    """The namespace enforces it: no root, no privileges, a read-only file system."""
    template = installed("Deployment")["spec"]["template"]
    pod = {"metadata": {**template["metadata"], "name": "trial"}, "spec": template["spec"]}
    await admin.create(PODS, pod, NAMESPACE, params={"dryRun": "All"})
    [container] = pod["spec"]["containers"]
    assert container["securityContext"].pop("readOnlyRootFilesystem")
    container["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiStatusError, match="violates PodSecurity"):
        await admin.create(PODS, pod, NAMESPACE, params={"dryRun": "All"})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"quota": {"cpu": 8}, "limit": {"cpu": "4"}}, "the quota must not exceed the limit"),
        ({"limit": {"cpu": "many"}}, "amounts must be quantities, for example 16 or 64Gi"),
        ({"parent": "q"}, "a queue cannot be its own parent"),
        ({"wieght": 2}, "field not declared in schema"),
        ({"reclaimFromSiblings": "Sometimes"}, "Unsupported value"),
    ],
)
async def test_a_wrong_queue_is_refused(
    admin: ApiClient, spec: dict[str, Any], message: str
) -> None:
    queue = {"apiVersion": "phalanx.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}}
    with pytest.raises(ApiStatusError, match=message):
        await apply(admin, {**queue, "spec": spec})


async def test_every_field_of_a_queue_has_a_description_and_is_read(admin: ApiClient) -> None:
    [version] = installed("CustomResourceDefinition")["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert all(field["description"] for field in fields.values())
    spec = {
        "parent": "all",
        "weight": 3,
        "quota": {GPU: 4},
        "limit": {GPU: "8", "memory": "64Gi"},
        "stopped": True,
        "priority": 5,
        "maxPriority": 100,
        "preemptWithinQueue": "LowerOrNewerEqual",
        "reclaimFromSiblings": "LowerPriority",
        "reclaimable": False,
        "nonPreemptibleWithinQuota": True,
        "consolidation": True,
        "namespaces": ["team-*"],
    }
    assert spec.keys() == fields.keys()
    stored = await stored_queue(admin, "ml", spec)
    read = cluster_queue(stored, is_volcano=False)
    assert read.problem is None
    assert read.notes == ("spec.consolidation has no effect on Kubernetes: pods are never moved",)
    assert msgspec.structs.asdict(read.queue) == {
        "name": "ml",
        "parent": "all",
        "weight": 3,
        "quota": {"gpu": 4000},
        "limit": {"gpu": 8000, "memory": 64 * 2**30},
        "stopped": True,
        "priority": 5,
        "max_priority": 100,
        "preempt_within_queue": "lower_or_newer_equal",
        "reclaim_from_siblings": "lower_priority",
        "reclaimable": False,
        "non_preemptible_within_quota": True,
        "consolidation": True,
        "namespaces": ("team-*",),
    }


async def stored_queue(admin: ApiClient, name: str, spec: dict[str, Any]) -> KubeQueue:
    queue = {"apiVersion": "phalanx.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    await apply(admin, {**queue, "spec": spec})
    resource = queues("phalanx.dev", "v1alpha1")
    stored = await admin.get(resource, name)
    await admin.delete(resource, name)
    return stored


async def test_the_commands_need_the_rights_of_the_viewer_and_no_other(
    plane: ControlPlane, admin: ApiClient, team: Pool
) -> None:
    config = yaml.safe_load(plane.address.kubeconfig.read_text())
    config["users"][0]["user"]["as"] = VIEWER
    viewer = Path(plane.address.folder) / "viewer.kubeconfig"
    viewer.write_text(yaml.safe_dump(config))
    at = Terminal("http://127.0.0.1:1", KUBECONFIG=str(viewer))
    name = team.namespace
    refused = await asyncio.to_thread(at.type, "kube", "queues")
    assert refused.status == 4
    assert "user jane may not list csinodes, namespaces, nodes" in refused.err
    assert refused.err.count("list ") == 1
    assert "ask an administrator to bind the ClusterRole phalanx-viewer" in refused.err
    hidden = await asyncio.to_thread(at.type, "kube", "why", "x", "-n", name)
    assert f"may not list podgroups in namespace {name}" in hidden.err
    await bind_viewer(admin)
    await create(team, "alone")
    for words in (
        ("gangs", "-A"),
        ("why", f"{name}/alone"),
        ("why", f"{name}/alone", "--now"),
        ("queues",),
    ):
        said = await asyncio.to_thread(at.type, "kube", *words)
        assert said.status == 0, said
    await until_used(plane, VIEWER, granted("phalanx-viewer"))
    used = {right for right, code in requests_of(plane, VIEWER) if code == 200}
    assert used == granted("phalanx-viewer")


@pytest.mark.parametrize("page", ["kubernetes", "migrate"])
async def test_the_manifests_of_the_pages_are_accepted(admin: ApiClient, page: str) -> None:
    objects = [each for block in blocks(page, "yaml") for each in yaml.safe_load_all(block)]
    assert objects
    for each in objects:
        await apply(admin, each, dryRun="All")


async def test_the_commands_of_the_page_work(plane: ControlPlane, admin: ApiClient) -> None:
    at = Terminal("http://127.0.0.1:1", KUBECONFIG=str(plane.address.kubeconfig))
    lines = [line for block in blocks("kubernetes", "sh") for line in block.splitlines()]
    assert blocks("migrate", "sh") == []
    async with AsyncExitStack() as stack:
        for program, *words in map(shlex.split, lines):
            match program, words:
                case "kubectl", ["apply", "-k", "deploy/kubernetes"]:
                    await install(admin)
                case "kubectl", ["apply", "-f", file]:
                    await stack.enter_async_context(TrainingOperator(admin, ROOT / file))
                case "phalanx", _:
                    given = [
                        str(ROOT / word) if word.startswith("examples/") else word for word in words
                    ]
                    said = await asyncio.to_thread(at.type, *given)
                    assert said.status == 0, (words, said)
                    assert said.err.startswith("warning: no scheduler"), (words, said)
                case _:
                    pytest.fail(f"this test cannot run {program} {words}")
    await admin.request("DELETE", PODS.path("default"), params={"gracePeriodSeconds": 0})


async def bind_viewer(admin: ApiClient) -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": VIEWER}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "viewers"},
        "roleRef": {**role, "name": "phalanx-viewer"},
        "subjects": [subject],
    }
    await apply(admin, binding)
    await until_allowed(admin, VIEWER, "list", "pods")
