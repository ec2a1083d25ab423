"""The environment variables of a task: its rank, its peers, the rendezvous, its devices.

Ranks count the gang's present members without gaps, role by role, lowest index first. In a gang
that starts as a whole these are its start set. A task that restarts alone keeps its rank.
"""

import json
from collections.abc import Mapping
from functools import partial

from phalanx.core.gang import Gang
from phalanx.core.model import Job, Task, index_in_role
from phalanx.core.node import GPU, Node
from phalanx.core.spec.arrays import INDEX
from phalanx.core.spec.job import Role
from phalanx.core.spec.placeholders import filled, filled_variable
from phalanx.core.spec.references import Reference, address_ports, resolved

_NO_ADDRESS = "127.0.0.1"
#: Larger gangs do not get GANG_PEERS: every task would get the hosts of all, and Linux limits the
#: length of a variable.
_PEERS_LIMIT = 1000


def element_values(job: Job) -> dict[str, str]:
    """What the placeholders of an element stand for; empty for any other job."""
    if job.spec.array is None or job.index is None:
        return {}
    return job.spec.array.values(job.index)


def command_of(job: Job, role: Role) -> str | tuple[str, ...]:
    """The command of a role, with the index and parameters of an element filled in."""
    values, command = element_values(job), role.command
    if not values:
        return command
    return filled(command, values) if isinstance(command, str) else _filled(command, values)


def args_of(job: Job, role: Role) -> tuple[str, ...]:
    """The arguments of a role, with the index and parameters of an element filled in."""
    return _filled(role.args, element_values(job))


def _filled(words: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(filled(word, values) for word in words) if values else words


class GangEnvironment:
    """The members of a gang in rank order, with their hosts; computes the variables of each."""

    def __init__(self, gang: Gang, nodes: Mapping[str, Node]) -> None:
        self.job = gang.job
        self._role_of = gang.role
        self._values = element_values(gang.job)
        self.members = gang.members()
        self.rank = {task.index: rank for rank, task in enumerate(self.members)}
        self._first_ports = address_ports(
            value for role in gang.job.spec.roles for value in role.env.values()
        )
        self._nodes = nodes
        self.hosts = [self._host(task) for task in self.members]
        self._node_rank: dict[str | None, int] = {}
        self._local_rank: dict[int, int] = {}
        #: By role: its members in rank order. By task: its number among them.
        self._of_role: dict[str | None, list[Task]] = {}
        self._role_rank: dict[int, int] = {}
        self._lead = self._rendezvous()
        on_node: dict[str | None, int] = {}
        for task in self.members:
            alike = self._of_role.setdefault(task.role, [])
            self._role_rank[task.index] = len(alike)
            alike.append(task)
            self._node_rank.setdefault(task.worker, len(self._node_rank))
            self._local_rank[task.index] = on_node.get(task.worker, 0)
            on_node[task.worker] = on_node.get(task.worker, 0) + 1
        is_small = len(self.hosts) <= _PEERS_LIMIT
        self._peers = {"GANG_PEERS": ",".join(map(self._peer, self.members))} if is_small else {}

    def _peer(self, task: Task) -> str:
        """The address of a member for its peers, with the port that its worker registered."""
        node = self._nodes.get(task.worker) if task.worker is not None else None
        if node is None:
            return _NO_ADDRESS
        return node.worker.peer_address(self._local_rank[task.index])

    def _host(self, task: Task) -> str:
        node = self._nodes.get(task.worker) if task.worker is not None else None
        return _NO_ADDRESS if node is None else node.worker.host

    def environment(self, task: Task) -> dict[str, str]:
        """The variables of one task: those of its role, and those of the gang, which win."""
        own = self._role_of(task.index).env
        if self._values:
            own = {name: filled_variable(value, self._values) for name, value in own.items()}
        resolve = partial(self._resolve, task)
        return {name: resolved(v, resolve) for name, v in own.items()} | self._variables(task)

    def _resolve(self, task: Task, reference: Reference) -> str:
        """The value of a reference like `$(task.index)` in the environment of a role."""
        if reference.kind == "index":
            return str(self._role_rank[task.index])
        if reference.kind == "ordinal":
            return str(index_in_role(self.job.spec, task.index))
        members = self._of_role.get(reference.role, [])
        if reference.kind == "count":
            return str(len(members))
        hosts = [self.hosts[self.rank[member.index]] for member in members]
        if reference.port is None:
            return ",".join(hosts)
        ports = [self._port(member, reference.port) for member in members]
        return json.dumps([f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)])

    def _port(self, task: Task, port: int) -> int:
        """The port of a task, if that of the first task on its host is `port`."""
        own = None if task.place is None else task.place.address_port
        first = self._first_ports.get(task.role)
        return port if own is None or first is None else port + own - first

    def _variables(self, task: Task) -> dict[str, str]:
        rank = self.rank[task.index]
        size = len(self.members)
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(self._local_rank[task.index]),
            "NODE_RANK": str(self._node_rank[task.worker]),
            "GANG_ID": self.job.id,
            "GANG_SIZE": str(size),
            "GANG_INDEX": str(rank),
            "PHALANX_JOB": self.job.id,
            "PHALANX_TASK": task.id,
            "PHALANX_ROLE": task.role,
            "PHALANX_ATTEMPT": str(task.epoch),
        }
        if self.job.array is not None:
            variables |= self._element_variables(self.job.array)
        if self.job.resume_step is not None:
            variables["PHALANX_RESUME_STEP"] = str(self.job.resume_step)
        return variables | self._peers | self._lead | self._devices(task)

    def _element_variables(self, array: str) -> dict[str, str]:
        """The variables of an element of an array: its index and its parameters."""
        params = {name: value for name, value in self._values.items() if name != INDEX}
        return {
            "PHALANX_ARRAY": array,
            "PHALANX_ARRAY_INDEX": str(self.job.index),
            "PHALANX_ARRAY_SIZE": str(self.job.spec.elements),
            **{f"PHALANX_PARAM_{name.upper()}": value for name, value in params.items()},
        }

    def _rendezvous(self) -> dict[str, str]:
        for task, host in zip(self.members, self.hosts, strict=True):
            if task.place is not None and task.place.port is not None:
                return {"MASTER_ADDR": host, "MASTER_PORT": str(task.place.port)}
        return {}

    def _devices(self, task: Task) -> dict[str, str]:
        """The GPUs of the task. On a machine with GPUs, a task without one sees none."""
        node = self._nodes.get(task.worker) if task.worker is not None else None
        if task.devices or (node is not None and node.worker.resources.get(GPU)):
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, task.devices))}
        return {}
