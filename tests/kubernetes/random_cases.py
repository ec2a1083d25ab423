"""Random small clusters with one pod to place, for a comparison with kube-scheduler.

Each case has node labels, topology keys and pod labels of its own, so that many cases live on one
API server and none of them sees the others.
"""

import random
from typing import Any, NamedTuple

GPU = "nvidia.com/gpu"
DRIVER = "disk.example.com"
_ZONE = "topology.kubernetes.io/zone"
Body = dict[str, Any]


class RandomCase(NamedTuple):
    nodes: list[Body]
    csi_nodes: list[Body]
    volumes: list[Body]
    claims: list[Body]
    placed: list[Body]  #: pods that are on nodes already
    leaving: list[str]  #: names of those that are being deleted
    probe: Body  #: the pod to place


class CaseGenerator:
    def __init__(self, seed: int, prefix: str, number: int) -> None:
        self._random = random.Random(f"{seed}/{number}")  # noqa: S311
        self._name = f"{prefix}-{number}"
        self._pool = {f"pool-{prefix}": str(number)}
        self._zone, self._host = f"zone-{prefix}-{number}", f"host-{prefix}-{number}"
        self._case = {"case": self._name}

    def case(self) -> RandomCase:
        chance = self._random
        count = chance.choice((1, 1, 1, 2, 3, 4))
        nodes = [self._node(n) for n in range(count)]
        names = [node["metadata"]["name"] for node in nodes]
        volumes, claims = self._volumes(), self._claims()
        placed = []
        for n in range(chance.randrange(5) if chance.random() < 0.7 else 0):
            pod = self._pod(f"placed-{n}", is_probe=False)
            pod["spec"]["nodeName"] = chance.choice(names)
            placed.append(pod)
        leaving = [p["metadata"]["name"] for p in placed if chance.random() < 0.15]
        csi_nodes = [self._csi_node(node) for node in nodes if chance.random() < 0.7]
        probe = self._pod("probe", is_probe=True)
        if chance.random() < 0.5:
            # One node may have it, so that the answer is about that node and its domains.
            probe["spec"]["nodeSelector"][self._host] = chance.choice(names)
        return RandomCase(nodes, csi_nodes, volumes, claims, placed, leaving, probe)

    # Nodes

    def _node(self, number: int) -> Body:
        chance = self._random
        name = f"{self._name}-{number}"
        labels = {**self._pool, self._host: name, "kubernetes.io/hostname": name}
        if chance.random() < 0.85:
            labels[self._zone] = chance.choice("ab")
        if chance.random() < 0.4:
            labels[_ZONE] = chance.choice(("z1", "z2", "z3"))
        labels |= {
            key: chance.choice(("1", "2", "10", "x", "0"))
            for key in ("size", "disk")
            if chance.random() < 0.6
        }
        amounts = {
            "cpu": chance.choice(("1", "2", "1500m")),
            "memory": chance.choice(("1Gi", "2Gi", "1500M")),
            "pods": chance.choice(("1", "3", "110")),
            GPU: chance.choice(("0", "1", "2")),
            "ephemeral-storage": "10Gi",
            "hugepages-2Mi": chance.choice(("0", "8Mi")),
        }
        spec: Body = {"taints": self._taints()}
        if chance.random() < 0.1:
            spec["unschedulable"] = True
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"allocatable": amounts, "capacity": amounts},
        }

    def _taints(self) -> list[Body]:
        chance = self._random
        taints = {}
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            key, effect = chance.choice("ab"), chance.choice(_EFFECTS)
            taints[key, effect] = {"key": key, "value": chance.choice("12"), "effect": effect}
        return [*taints.values()]

    def _csi_node(self, node: Body) -> Body:
        limit = self._random.choice((None, 1, 1, 2))
        driver: Body = {"name": DRIVER, "nodeID": node["metadata"]["name"]}
        if limit is not None:
            driver["allocatable"] = {"count": limit}
        metadata = {"name": node["metadata"]["name"], "labels": self._pool}
        return {"metadata": metadata, "spec": {"drivers": [driver]}}

    # Volumes

    def _volumes(self) -> list[Body]:
        """The volumes of three claims: on a disk that can be attached, or in a folder."""
        return [self._volume(n) for n in range(3)]

    def _volume(self, number: int) -> Body:
        chance, name = self._random, f"{self._name}-{number}"
        source: Body = {"hostPath": {"path": "/data"}}
        if number < 2:
            source = {"csi": {"driver": DRIVER, "volumeHandle": name}}
        spec: Body = {
            **source,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOncePod" if number == 1 else "ReadWriteOnce"],
            "claimRef": {"name": f"claim-{self._name}-{number}", "namespace": "NAMESPACE"},
            "persistentVolumeReclaimPolicy": "Retain",
        }
        if chance.random() < 0.5:
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": self._node_terms()}}
        labels = dict(self._pool)
        if chance.random() < 0.4:
            labels[_ZONE] = chance.choice(("z1", "z2", "z1__z2"))
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    def _claims(self) -> list[Body]:
        return [
            {
                "metadata": {
                    "name": f"claim-{self._name}-{n}",
                    "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
                },
                "spec": {
                    "volumeName": f"{self._name}-{n}",
                    "storageClassName": "",
                    "accessModes": ["ReadWriteOncePod" if n == 1 else "ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
            for n in range(3)
        ]

    # Pods

    def _pod(self, name: str, *, is_probe: bool) -> Body:
        chance = self._random
        labels = {**self._case, "app": chance.choice("xy"), "tier": chance.choice("xy")}
        spec: Body = {
            "schedulerName": "default-scheduler" if is_probe else "none",
            "containers": self._containers(),
            "affinity": {},
            "terminationGracePeriodSeconds": 3600,
            "tolerations": self._tolerations(),
        }
        if chance.random() < 0.3:
            spec["initContainers"] = self._init_containers()
        if chance.random() < 0.15:
            # The API server refuses less than the containers request together.
            spec.pop("initContainers", None)
            for container in spec["containers"]:
                container["resources"]["requests"].pop("cpu", None)
            spec["resources"] = {"requests": {"cpu": chance.choice(("900m", "1800m"))}}
        if chance.random() < 0.5:
            spec["affinity"] |= self._pod_affinity("podAntiAffinity")
        if chance.random() < 0.35:
            spec["affinity"] |= self._pod_affinity("podAffinity")
        if chance.random() < 0.35:
            spec["topologySpreadConstraints"] = self._spreads()
        if chance.random() < 0.3:
            number = chance.randrange(3)
            claim = {"claimName": f"claim-{self._name}-{number}"}
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
        if is_probe:
            spec["nodeSelector"] = {**self._pool, **self._selector()}
            if chance.random() < 0.4:
                terms = {"nodeSelectorTerms": self._node_terms()}
                required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
                spec["affinity"]["nodeAffinity"] = required
        full_name = f"{self._name}-{name}"
        return {"metadata": {"name": full_name, "labels": labels}, "spec": spec}

    def _containers(self) -> list[Body]:
        chance = self._random
        containers = []
        for n in range(chance.choice((1, 1, 2))):
            requests = self._requests()
            container: Body = {"name": f"c{n}", "image": "simulated"}
            limits = {name: requests[name] for name in (GPU, "hugepages-2Mi") if name in requests}
            container["resources"] = {"requests": requests, "limits": limits}
            if n == 0 and chance.random() < 0.25:
                container["ports"] = [self._port(80)]
            containers.append(container)
        return containers

    def _init_containers(self) -> list[Body]:
        chance = self._random
        containers = []
        for n in range(chance.choice((1, 2, 3))):
            requests = {"cpu": chance.choice(("300m", "700m", "1200m"))}
            container: Body = {"name": f"i{n}", "image": "simulated"}
            container["resources"] = {"requests": requests}
            if chance.random() < 0.5:
                container["restartPolicy"] = "Always"
                if n == 0 and chance.random() < 0.4:
                    container["ports"] = [self._port(90)]
            containers.append(container)
        return containers

    def _requests(self) -> dict[str, str]:
        chance = self._random
        requests = {}
        if chance.random() < 0.6:
            requests["cpu"] = chance.choice(("0", "1u", "250m", "500m", "1", "1400m"))
        if chance.random() < 0.4:
            requests["memory"] = chance.choice(("0", "100M", "1Gi", "1500m"))
        if chance.random() < 0.2:
            requests[GPU] = chance.choice(("0", "1", "2"))
        if chance.random() < 0.1:
            requests["ephemeral-storage"] = chance.choice(("1Gi", "20Gi"))
        if chance.random() < 0.05:
            # Kubernetes asks for a CPU or memory request beside huge pages.
            requests |= {"hugepages-2Mi": "4Mi", "memory": "100M"}
        return requests

    def _port(self, first: int) -> Body:
        chance = self._random
        port: Body = {"containerPort": first, "hostPort": first + chance.randrange(2)}
        if chance.random() < 0.3:
            port["protocol"] = "UDP"
        if chance.random() < 0.3:
            port["hostIP"] = chance.choice(("10.0.0.1", "10.0.0.2"))
        return port

    def _tolerations(self) -> list[Body]:
        chance = self._random
        tolerations = []
        for _ in range(chance.choice((0, 0, 1, 2))):
            toleration: Body = {"operator": chance.choice(("Exists", "Equal"))}
            if toleration["operator"] == "Equal" or chance.random() < 0.8:
                toleration["key"] = chance.choice("ab")
            if toleration["operator"] == "Equal":
                toleration["value"] = chance.choice("12")
            if chance.random() < 0.6:
                toleration["effect"] = chance.choice(_EFFECTS)
            tolerations.append(toleration)
        if chance.random() < 0.2:
            key = "node.kubernetes.io/unschedulable"
            tolerations.append({"key": key, "operator": "Exists"})
        return tolerations

    # Selectors

    def _selector(self) -> dict[str, str]:
        chance = self._random
        return {"size": chance.choice(("1", "2", "x"))} if chance.random() < 0.2 else {}

    def _node_terms(self) -> list[Body]:
        return [self._node_term() for _ in range(self._random.choice((1, 1, 2)))]

    def _node_term(self) -> Body:
        chance = self._random
        expressions = [self._requirement(("size", "disk")) for _ in range(chance.choice((1, 1, 2)))]
        term: Body = {"matchExpressions": expressions}
        if chance.random() < 0.2:
            values = [f"{self._name}-{chance.randrange(3)}"]
            operator = chance.choice(("In", "NotIn"))
            field = {"key": "metadata.name", "operator": operator, "values": values}
            term["matchFields"] = [field]
            if chance.random() < 0.5:
                del term["matchExpressions"]
        return term

    def _requirement(self, keys: tuple[str, ...]) -> Body:
        chance = self._random
        operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        requirement: Body = {"key": chance.choice(keys), "operator": operator}
        if operator in ("In", "NotIn"):
            requirement["values"] = chance.sample(("1", "2", "10", "x"), chance.choice((1, 2)))
        elif operator in ("Gt", "Lt"):
            requirement["values"] = [chance.choice(("0", "1", "9", "5"))]
        return requirement

    def _pod_affinity(self, kind: str) -> Body:
        chance = self._random
        terms = [self._pod_term() for _ in range(chance.choice((1, 1, 2)))]
        return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    def _pod_term(self) -> Body:
        chance = self._random
        term: Body = {"topologyKey": chance.choice((self._zone, self._zone, self._host))}
        if chance.random() < 0.95:
            term["labelSelector"] = self._pod_selector()
        if chance.random() < 0.15:
            term["namespaceSelector"] = {}
        elif chance.random() < 0.1:
            term["namespaces"] = ["elsewhere"]
        if "labelSelector" in term and chance.random() < 0.1:
            key = chance.choice(("matchLabelKeys", "mismatchLabelKeys"))
            term[key] = ["tier"]
            term["labelSelector"]["matchLabels"].pop("tier", None)
        return term

    def _pod_selector(self) -> Body:
        chance = self._random
        labels = dict(self._case)
        if chance.random() < 0.7:
            labels["app"] = chance.choice("xy")
        if chance.random() < 0.3:
            labels["tier"] = chance.choice("xy")
        selector: Body = {"matchLabels": labels}
        if chance.random() < 0.2:
            operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
            requirement: Body = {"key": "app", "operator": operator}
            if operator in ("In", "NotIn"):
                requirement["values"] = [chance.choice("xy")]
            selector["matchExpressions"] = [requirement]
        return selector

    def _spreads(self) -> list[Body]:
        chance = self._random
        keys = chance.sample((self._zone, self._host), chance.choice((1, 1, 2)))
        spreads = []
        for key in keys:
            spread: Body = {
                "maxSkew": chance.choice((1, 1, 2)),
                "topologyKey": key,
                "whenUnsatisfiable": chance.choice(("DoNotSchedule",) * 4 + ("ScheduleAnyway",)),
                "labelSelector": self._pod_selector(),
            }
            if spread["whenUnsatisfiable"] == "DoNotSchedule" and chance.random() < 0.2:
                spread["minDomains"] = chance.choice((1, 2, 3))
            if chance.random() < 0.3:
                spread["nodeAffinityPolicy"] = chance.choice(("Honor", "Ignore"))
            if chance.random() < 0.3:
                spread["nodeTaintsPolicy"] = chance.choice(("Honor", "Ignore"))
            if chance.random() < 0.2 and "tier" not in spread["labelSelector"]["matchLabels"]:
                spread["matchLabelKeys"] = ["tier"]
            spreads.append(spread)
        return spreads


_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
