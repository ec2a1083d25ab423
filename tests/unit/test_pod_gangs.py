"""Pods that form gangs: PodGroups, labels of ACK, Jobs of Kubernetes."""

import pytest
from tests.manifests import bundled, converted, only, pod, refused, warnings

GROUP = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: nginx}
spec: {minMember: 3, scheduleTimeoutSeconds: 10}
"""
IN_GROUP = "{scheduling.x-k8s.io/pod-group: nginx}"
PREFIX = "pod-group.scheduling.sigs.k8s.io"


def labelled(name: str, least: object, **more: str) -> str:
    words = "".join(f", {PREFIX}/{key.replace('_', '-')}: {value}" for key, value in more.items())
    return f'{{{PREFIX}/name: {name}, {PREFIX}/min-available: "{least}"{words}}}'


def test_a_pod_group_with_its_pods_is_one_job() -> None:
    pods = "".join(pod(f"web-{n}", labels=IN_GROUP) for n in range(4))
    assert only(GROUP + pods) == {
        "name": "nginx",
        "roles": {"web": {"replicas": 4, "command": ["train"]}},
        "min_available": 3,
        "schedule_timeout": "10s",
        "restart": "task",
    }


def test_pods_can_come_before_their_pod_group() -> None:
    pods = "".join(pod(f"web-{n}", labels=IN_GROUP) for n in range(3))
    assert only(pods + "---" + GROUP) == only(GROUP + pods)


@pytest.mark.parametrize("key", [f"{PREFIX}/name", PREFIX, "scheduling.x-k8s.io/pod-group"])
def test_every_label_that_names_a_pod_group_is_known(key: str) -> None:
    pods = "".join(pod(f"web-{n}", labels=f"{{{key}: nginx}}") for n in range(3))
    assert only(GROUP + pods)["name"] == "nginx"


@pytest.mark.parametrize("version", ["scheduling.sigs.k8s.io/v1alpha1", "v1alpha1"])
def test_an_older_version_of_the_pod_group_is_read_with_a_warning(version: str) -> None:
    text = GROUP.replace("scheduling.x-k8s.io/v1alpha1", version)
    text += "".join(pod(f"web-{n}", labels=IN_GROUP) for n in range(3))
    [note] = warnings(text)
    assert note.startswith("document 1: apiVersion is an older name")


def test_labels_alone_make_a_gang() -> None:
    text = "".join(pod(f"w-{n}", labels=labelled("tf-smoke", 3)) for n in range(3))
    assert only(text) == {
        "name": "tf-smoke",
        "roles": {"w": {"replicas": 3, "command": ["train"]}},
        "restart": "task",
    }


@pytest.mark.parametrize("name", ["Gang_A", "-a", "a..b"])
def test_the_name_in_a_label_is_a_dns_subdomain(name: str) -> None:
    [path] = refused(pod("w-0", labels=labelled(name, 1)))
    assert path == f'document 1: metadata.labels["{PREFIX}/name"]'


def test_labels_can_have_a_group_of_gangs_and_a_match_policy() -> None:
    names = r'"[\"default/a\", \"default/b\"]"'
    text = pod("a-0", labels=labelled("a", 1, groups=names, match_policy="waiting-and-running"))
    text += pod("b-0", labels=labelled("b", 1, groups=names))
    first, second = converted(text)
    assert first["group"] == second["group"] == ["default/a", "default/b"]
    assert (first["match"], second.get("match")) == ("waiting-and-running", None)


def test_a_pod_group_can_have_the_same_labels() -> None:
    text = GROUP.replace(
        "{name: nginx}", f"{{name: nginx, labels: {{{PREFIX}/match-policy: once-satisfied}}}}"
    )
    text += "".join(pod(f"web-{n}", labels=IN_GROUP) for n in range(3))
    assert only(text)["match"] == "once-satisfied"


def test_equal_templates_become_one_role_and_different_ones_several() -> None:
    gang = labelled("mixed", 3)
    text = pod("ps-0", labels=gang, spec="nodeSelector: {zone: a}")
    text += pod("worker-0", labels=gang) + pod("worker-1", labels=gang)
    assert only(text)["roles"] == {
        "ps": {"command": ["train"], "node_selector": {"zone": "a"}},
        "worker": {"replicas": 2, "command": ["train"]},
    }


def test_roles_of_pods_with_similar_names_have_different_names() -> None:
    gang = labelled("mixed", 2)
    text = pod("w-0", labels=gang) + pod("w-1", labels=gang, spec="nodeSelector: {zone: a}")
    assert list(only(text)["roles"]) == ["w", "w-1"]


def test_a_pod_without_a_gang_is_a_job_of_its_own() -> None:
    assert only(pod("alone")) == {
        "name": "alone",
        "roles": {"alone": {"command": ["train"]}},
        "restart": "task",
    }


FULL = """
apiVersion: v1
kind: Pod
metadata: {name: full, namespace: ml}
spec:
  priorityClassName: high
  priority: 1000
  preemptionPolicy: Never
  restartPolicy: Never
  terminationGracePeriodSeconds: 60
  activeDeadlineSeconds: 3600
  schedulerName: other
  nodeSelector: {gpu_model: h100}
  containers:
    - name: main
      image: registry.example/train:7b
      command: [python, train.py]
      args: ["--out=$(OUT)/$(MISSING)", "$$(OUT)"]
      workingDir: /srv
      ports: [{containerPort: 2222}]
      env:
        - {name: ROOT, value: /data}
        - {name: OUT, value: $(ROOT)/out}
        - {name: ODD, value: $(task.index)}
      resources:
        requests: {cpu: 500m}
        limits: {cpu: 2, memory: 1Gi, nvidia.com/gpu: 1, example.com/nic: 2}
"""


def test_all_supported_fields_of_a_pod_are_translated() -> None:
    assert only(FULL, priority_classes={"high": 1000}) == {
        "name": "full",
        "namespace": "ml",
        "priority_class": "high",
        "preemption_policy": "never",
        "restart": "never",
        "grace": "1m",
        "time_limit": "1h",
        "roles": {
            "full": {
                "image": "registry.example/train:7b",
                "command": ["python", "train.py", "--out=/data/out/$(MISSING)", "$(OUT)"],
                "workdir": "/srv",
                "env": {"ROOT": "/data", "OUT": "/data/out", "ODD": "$$(task.index)"},
                "resources": {"cpu": "500m", "memory": "1Gi", "gpu": 1, "example.com/nic": 2},
                "node_selector": {"gpu_model": "h100"},
            }
        },
    }


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: sweep}
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  backoffLimit: 4
  activeDeadlineSeconds: 600
  template:
    metadata: {labels: LABELS}
    spec:
      restartPolicy: Never
      containers:
        - {name: main, command: [run], env: [{name: SHARD, value: part-$(JOB_COMPLETION_INDEX)}]}
"""


def test_the_pods_of_a_job_can_be_members_of_a_pod_group() -> None:
    group = GROUP.replace("minMember: 3", "minMember: 4").replace("nginx", "sweep-gang")
    text = group + "---" + JOB.replace("LABELS", "{scheduling.x-k8s.io/pod-group: sweep-gang}")
    assert only(text) == {
        "name": "sweep-gang",
        "roles": {
            "sweep": {
                "replicas": 4,
                "command": ["run"],
                "env": {"SHARD": "part-$(task.ordinal)", "JOB_COMPLETION_INDEX": "$(task.ordinal)"},
            }
        },
        "schedule_timeout": "10s",
        "restart": "task",
        "max_retries": 5,
        "time_limit": "10m",
    }


def test_a_job_without_a_gang_starts_with_one_task_or_more() -> None:
    assert only(JOB.replace("LABELS", "{}"))["min_available"] == 1


@pytest.mark.parametrize(
    ("parallelism", "completions", "replicas", "at_a_time"),
    [(4, 9, 9, 4), (4, 4, 4, None), (9, 4, 4, None), (4, None, 4, None), (None, 3, 3, 1)],
)
def test_a_job_runs_its_completions_in_parallel_up_to_a_number(
    parallelism: int | None, completions: int | None, replicas: int, at_a_time: int | None
) -> None:
    text = JOB.replace("LABELS", "{}")
    for key, number in (("completions", completions), ("parallelism", parallelism)):
        text = text.replace(f"  {key}: 4\n", "" if number is None else f"  {key}: {number}\n")
    job = only(text)
    assert (job["roles"]["sweep"]["replicas"], job.get("max_running")) == (replicas, at_a_time)


def test_a_job_of_a_gang_cannot_run_its_pods_in_turns() -> None:
    text = JOB.replace("LABELS", labelled("g", 4)).replace("completions: 4", "completions: 9")
    assert list(refused(text)) == ["document 1: spec.parallelism"]


def test_each_indexed_job_of_a_gang_has_its_own_indices() -> None:
    jobs = [JOB.replace("LABELS", labelled("g", 8)).replace("sweep", name) for name in "ab"]
    roles = only("---".join(jobs))["roles"]
    assert {name: role["replicas"] for name, role in roles.items()} == {"a": 4, "b": 4}


def test_a_variable_known_at_the_start_cannot_be_part_of_a_command() -> None:
    text = JOB.replace("LABELS", "{}").replace("[run]", "[run, $(JOB_COMPLETION_INDEX)]")
    [(path, message)] = refused(text).items()
    assert path == "document 1: spec.template.spec.containers[0].command[1]"
    assert "let a shell or the program read the variable" in message


# What is refused


def test_two_priorities_in_one_gang_are_refused_and_both_are_named() -> None:
    gang = labelled("g", 2)
    text = pod("a-0", labels=gang, spec="priority: 5") + pod("b-0", labels=gang, spec="priority: 7")
    [(path, message)] = refused(text).items()
    assert path == "document 2: spec.priority"
    assert message.startswith("gives b-0 priority 7, but a-0 has priority 5")


def test_a_pod_group_of_another_namespace_is_named() -> None:
    text = GROUP + pod("web-0", labels=IN_GROUP, namespace="other")
    problems = refused(text)
    where = 'document 2: metadata.labels["scheduling.x-k8s.io/pod-group"]'
    assert "a PodGroup of namespace default, but the pod is in namespace other" in problems[where]


def test_members_in_two_namespaces_are_refused_and_both_are_named() -> None:
    gang = labelled("g", 2)
    problems = refused(pod("a-0", labels=gang) + pod("b-0", labels=gang, namespace="other"))
    assert problems["document 2: metadata.namespace"] == (
        "is other for b-0, but default for a-0; use one namespace for all members of a gang"
    )


PARTS = {
    pod("web-0", labels=IN_GROUP): (1, None),
    GROUP: (0, 3),
    GROUP + pod("web-0", labels=IN_GROUP): (1, 3),
    pod("web-0", labels=labelled("nginx", 8)): (1, 8),
}


@pytest.mark.parametrize("text", PARTS)
def test_a_part_of_a_gang_has_the_number_of_members_that_it_needs(text: str) -> None:
    found = bundled(text)
    [job] = found.jobs
    part = found.part(job)
    assert part is not None
    assert (job.name, job.size, part.needed) == ("nginx", *PARTS[text])


def test_a_part_cannot_be_written_in_the_native_form() -> None:
    problems = [refused(text, whole_gangs=True) for text in PARTS]
    assert [list(one) for one in problems] == [
        ['document 1: metadata.labels["scheduling.x-k8s.io/pod-group"]'],
        ["document 1: metadata.name"],
        ["document 1: spec.minMember"],
        [f'document 1: metadata.labels["{PREFIX}/min-available"]'],
    ]
    absent, bare, few, labels = (next(iter(one.values())) for one in problems)
    assert "but this file has no PodGroup of that name; add it" in absent
    assert "scheduling.x-k8s.io/pod-group: nginx" in bare
    assert few.startswith("is 3, but the number of members in this file is 1;")
    assert labels.startswith("is 8, but the number of members in this file is 1;")


@pytest.mark.parametrize("least", ["0", "-1", "many", "1.5"])
def test_an_invalid_minimum_is_refused(least: str) -> None:
    text = GROUP.replace("minMember: 3", f"minMember: {least}") + pod("web-0", labels=IN_GROUP)
    assert "at least 1" in refused(text)["document 1: spec.minMember"]


def test_labels_that_differ_are_refused() -> None:
    text = pod("a-0", labels=labelled("g", 1)) + pod("a-1", labels=labelled("g", 2))
    [(path, message)] = refused(text).items()
    assert path == f'document 2: metadata.labels["{PREFIX}/min-available"]'
    assert "document 1" in message


def test_groups_that_are_not_json_are_refused() -> None:
    text = pod("a-0", labels=labelled("a", 1, groups="'[\"default/a\"'"))
    [(path, message)] = refused(text).items()
    assert path == f'document 1: metadata.labels["{PREFIX}/groups"]'
    assert 'write a JSON list, like ["default/gang-a"' in message


def test_groups_that_refer_to_each_other_in_a_cycle_are_refused() -> None:
    text = ""
    for name, after in (("a", "b"), ("b", "c"), ("c", "a")):
        text += pod(name, labels=labelled(name, 1, groups=f"'[\"default/{after}\"]'"))
    problems = refused(text)
    assert len(problems) == 3
    assert all(
        "write the same list of all jobs on each of them" in message
        for message in problems.values()
    )


def test_two_pods_of_one_name_are_refused() -> None:
    assert list(refused(pod("a") + pod("a"))) == ["document 2: metadata.name"]


UNSUPPORTED = {
    "volumes: [{name: data}]": "spec.volumes",
    "securityContext: {runAsUser: 0}": "spec.securityContext",
    "affinity: {}": "spec.affinity",
    "initContainers: [{name: x}]": "spec.initContainers",
    "serviceAccountName: bob": "spec.serviceAccountName",
}


@pytest.mark.parametrize("spec", UNSUPPORTED)
def test_unsupported_fields_are_refused_or_ignored_with_a_warning(spec: str) -> None:
    path = f"document 1: {UNSUPPORTED[spec]}"
    [(found, message)] = refused(pod("a", spec=spec)).items()
    assert (found, "--ignore-unsupported" in message) == (path, True)
    [warning] = bundled(pod("a", spec=spec), ignore_unsupported=True).warnings
    assert type(warning).__name__ == "Unsupported"
    assert warning.path == path
    assert only(pod("a", spec=spec), ignore_unsupported=True) == only(pod("a"))


def test_a_sidecar_is_refused_with_its_path() -> None:
    text = pod("a").replace("[train]}]", "[train]}, {name: proxy, image: envoy}]")
    assert list(refused(text)) == ["document 1: spec.containers[1]"]
    assert list(only(text, ignore_unsupported=True)["roles"]) == ["a"]


def test_problems_of_the_validation_have_the_path_of_the_document() -> None:
    text = FULL.replace("500m", "lots").replace("/srv", "srv").replace("value: /data", "value: 7")
    assert set(refused(text, priority_classes={"high": 1})) == {
        "document 1: spec.containers[0].resources.requests.cpu",
        "document 1: spec.containers[0].workingDir",
        "document 1: spec.containers[0].env[0].value",
    }


# Images


def test_an_image_can_be_ignored() -> None:
    job = only(FULL, ignore_image=True, priority_classes={"high": 1})
    assert "image" not in job["roles"]["full"]
    assert job["roles"]["full"]["node_selector"] == {"gpu_model": "h100"}


def test_an_ignored_image_without_a_command_is_refused() -> None:
    text = pod("a").replace("command: [train]", "image: train:7b")
    assert only(text)["roles"] == {"a": {"image": "train:7b"}}
    [(path, message)] = refused(text, ignore_image=True).items()
    assert path == "document 1: spec.containers[0].command"
    assert (
        message
        == "is missing; write the command to run: the program of an ignored image cannot be run"
    )


def test_arguments_of_an_ignored_image_are_run_as_the_command_with_a_warning() -> None:
    text = pod("a").replace("command: [train]", "image: i, args: [python, x.py]")
    assert only(text)["roles"] == {"a": {"image": "i", "args": ["python", "x.py"]}}
    assert only(text, ignore_image=True)["roles"] == {"a": {"command": ["python", "x.py"]}}
    [note] = warnings(text, ignore_image=True)
    assert note.startswith("document 1: spec.containers[0].args is run as the command")


# The gate on the sum


def gated(amount: str) -> str:
    group = GROUP.replace("minMember: 3", f"minMember: 2, minResources: {{cpu: {amount}}}")
    asking = pod("w-0", labels=IN_GROUP).replace(
        "[train]", "[train], resources: {limits: {cpu: 2}}"
    )
    return group + asking + asking.replace("w-0", "w-1")


@pytest.mark.parametrize("amount", ["4", "5"])
def test_minimum_resources_are_a_gate(amount: str) -> None:
    assert only(gated(amount))["min_resources"] == {"cpu": int(amount)}


def test_minimum_resources_that_are_no_quantity_are_refused() -> None:
    [(path, _)] = refused(gated("many")).items()
    assert path == "document 1: spec.minResources.cpu"


KUBERNETES_GROUP = """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: web}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  schedulingConstraints: {topology: [{key: rack}]}
  priorityClassName: high
  priority: 1000
  disruptionMode: PodGroup
"""


def in_kubernetes_group(count: int) -> str:
    group = "schedulingGroup: {podGroupName: web}"
    return "".join(pod(f"w-{n}", spec=group) for n in range(count))


def test_a_pod_group_of_kubernetes_itself_is_a_gang() -> None:
    text = KUBERNETES_GROUP + in_kubernetes_group(3)
    assert only(text, priority_classes={"high": 1000}) == {
        "name": "web",
        "priority_class": "high",
        "roles": {"w": {"replicas": 3, "command": ["train"]}},
        "min_available": 2,
        "match": "waiting-and-running",
        "pack": {"by": "rack"},
        "restart": "task",
    }
    assert not warnings(text, priority_classes={"high": 1000})


def test_pods_of_a_basic_pod_group_start_one_by_one() -> None:
    text = KUBERNETES_GROUP.replace("gang: {minCount: 2}", "basic: {}")
    job = only(text + in_kubernetes_group(3), priority_classes={"high": 1000})
    assert job["min_available"] == 1


@pytest.mark.parametrize("policy", ["", "gang: {}", "basic: {}, gang: {minCount: 2}"])
def test_a_pod_group_of_kubernetes_without_one_policy_is_refused(policy: str) -> None:
    text = KUBERNETES_GROUP.replace("gang: {minCount: 2}", policy) + in_kubernetes_group(2)
    [path] = refused(text, priority_classes={"high": 1000})
    assert path.startswith("document 1: spec.schedulingPolicy")
