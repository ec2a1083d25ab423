"""A worker with the tasks it is charged for: resources, slots, devices and ports.

A charge lasts from the reservation until no process of the attempt can be alive there, which may be
long after the task has ended. Amounts are exact integers; a device is a thousand thousandths.
"""

from collections.abc import Iterable

import msgspec

from phalanx.core.model import Protocol, Residue, Task, Worker
from phalanx.core.spec.job import Resources, Role
from phalanx.core.time_units import Micros

DEVICE = 1000
GPU = "gpu"

#: An attempt: the task's id and its epoch.
AttemptKey = tuple[str, int]


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What one attempt, or one gathered place, takes of its worker."""

    at: Micros
    resources: Resources
    devices: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()


class Node:
    __slots__ = (
        "charges",
        "devices",
        "gathered",
        "inventoried",
        "residues",
        "strays",
        "used",
        "worker",
    )

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.charges: dict[AttemptKey, Charge] = {}
        #: Those charges whose task has settled: a process may be left of it.
        self.residues: set[AttemptKey] = set()
        #: By task: places that pending non-strict gangs have gathered here.
        self.gathered: dict[str, Charge] = {}
        self.used: dict[str, int] = {}
        #: Thousandths free on each device, by index.
        self.devices = [DEVICE] * (worker.resources.get(GPU, 0) // DEVICE)
        #: Attempts that run here, should not, and are not charged.
        self.strays: frozenset[AttemptKey] = frozenset()
        #: Whether the agent has reported all its attempts to this leader. Until then no task is
        #: placed here.
        self.inventoried = worker.protocol is Protocol.PLAIN

    def copy(self) -> "Node":
        copy = Node.__new__(Node)
        copy.worker = self.worker
        copy.charges = self.charges.copy()
        copy.residues = self.residues.copy()
        copy.gathered = self.gathered.copy()
        copy.used = self.used.copy()
        copy.devices = self.devices.copy()
        copy.strays = self.strays
        copy.inventoried = self.inventoried
        return copy

    @property
    def is_open(self) -> bool:
        """Whether tasks can be placed here.

        A plain worker cannot say what it runs. While a process of an earlier attempt may be left
        there, another attempt of the same task must not start beside it.
        """
        is_clean = self.worker.protocol is not Protocol.PLAIN or not self.residues
        return self.worker.is_open and self.inventoried and not self.strays and is_clean

    @property
    def closed(self) -> str:
        """Why no tasks can be placed here, in a word or two; empty if they can."""
        worker = self.worker
        if worker.lost_at is not None:
            return "lost"
        if worker.leaving:
            return "shutting down"
        if worker.cordoned is not None:
            return "cordoned"
        return "" if self.is_open else "not ready"

    @property
    def occupants(self) -> int:
        return len(self.charges) + len(self.gathered)

    def free(self, resource: str) -> int:
        return self.worker.resources.get(resource, 0) - self.used.get(resource, 0)

    def misfit(self, role: Role, devices: tuple[int, ...] | None) -> str | None:
        """Why a task of the role cannot be placed here now, or None if it can. `devices` are those
        that `pick_devices` has picked for it."""
        worker = self.worker
        if not self.is_open:
            return self._closed()
        for label, value in role.node_selector.items():
            if worker.labels.get(label) != value:
                return f"its label {label} is not {value}"
        if worker.slots is not None and self.occupants >= worker.slots:
            return "its only slot is taken" if worker.slots == 1 else "all its slots are taken"
        for resource, amount in role.resources.items():
            if amount > (free := self.free(resource)):
                return f"it has {free} {resource} free, not {amount}"
        if devices is None:
            return "enough GPU capacity is free in total, but not on single GPUs"
        return None

    def _closed(self) -> str:
        if not self.worker.is_open:
            cordon = self.worker.cordoned if self.closed == "cordoned" else None
            return f"it is {self.closed}" + (f": {cordon}" if cordon is not None else "")
        if not self.inventoried:
            return "it has not reported its tasks yet"
        if self.strays:
            return f"{len(self.strays)} unassigned tasks still run there"
        return "a process of an earlier attempt may still run there"

    def pick_devices(self, thousandths: int) -> tuple[int, ...] | None:
        """Whole devices: the lowest free ones. A fraction: the fullest device on which it fits."""
        if not thousandths:
            return ()
        if thousandths >= DEVICE:
            free = [n for n, left in enumerate(self.devices) if left == DEVICE]
            count = thousandths // DEVICE
            return tuple(free[:count]) if len(free) >= count else None
        fitting = [(left, n) for n, left in enumerate(self.devices) if left >= thousandths]
        return (min(fitting)[1],) if fitting else None

    def missing_devices(self) -> dict[int, int]:
        """By index: thousandths charged on devices that the machine no longer has."""
        missing: dict[int, int] = {}
        for charge in (*self.charges.values(), *self.gathered.values()):
            for device in charge.devices:
                if device >= len(self.devices):
                    missing[device] = missing.get(device, 0) + _share(charge)
        return missing

    def pick_port(self, ports: tuple[int, int], neighbours: Iterable["Node"]) -> int | None:
        """The lowest of these ports that no attempt on this host may still be using."""
        taken: set[int] = set()
        for node in (self, *neighbours):
            for charge in node.charges.values():
                taken.update(charge.ports)
        for port in range(ports[0], ports[1] + 1):
            if port not in taken:
                return port
        return None

    def replace_worker(self, worker: Worker) -> None:
        """Replace the worker's row. The charges stay."""
        same_size = worker.resources == self.worker.resources
        self.worker = worker
        if not same_size:
            self.devices = [DEVICE] * (worker.resources.get(GPU, 0) // DEVICE)
            self.used = {}
            for charge in (*self.charges.values(), *self.gathered.values()):
                self._count(charge, 1)

    def charge(self, attempt: AttemptKey, charge: Charge) -> None:
        self.charges[attempt] = charge
        self._count(charge, 1)

    def discharge(self, attempt: AttemptKey) -> bool:
        charge = self.charges.pop(attempt, None)
        if charge is None:
            return False
        self.residues.discard(attempt)
        self._count(charge, -1)
        return True

    def gather(self, task: str, charge: Charge) -> None:
        """Charge a gathered place."""
        self.gathered[task] = charge
        self._count(charge, 1)

    def release_gathered(self, task: str) -> None:
        charge = self.gathered.pop(task, None)
        if charge is not None:
            self._count(charge, -1)

    def _count(self, charge: Charge, sign: int) -> None:
        for resource, amount in charge.resources.items():
            self.used[resource] = self.used.get(resource, 0) + sign * amount
        if charge.devices:
            share = _share(charge)
            for device in charge.devices:
                # A machine may come back with fewer devices than are charged.
                if device < len(self.devices):
                    self.devices[device] -= sign * share


def _share(charge: Charge) -> int:
    """The thousandths that the charge takes of each of its devices."""
    return min(charge.resources[GPU], DEVICE) if len(charge.devices) == 1 else DEVICE


def charge_of(task: Task, role: Role) -> Charge:
    place = task.place
    if place is None:
        raise AssertionError(f"bug: a charge for a task without a place: {task.story}")
    return Charge(place.placed_at, role.resources, place.devices, place.ports)


def residue_of(task: Task, charge: Charge, worker: str, now: Micros) -> Residue:
    return Residue(
        task=task.id,
        epoch=task.epoch,
        worker=worker,
        since=now,
        placed_at=charge.at,
        resources=charge.resources,
        devices=charge.devices,
        ports=charge.ports,
    )
