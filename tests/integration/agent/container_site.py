"""Workers that run containers, and what a user asks of them."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tests.integration.agent.machines import Fleet, Machine
from tests.integration.server.waiting import PATIENCE_S, eventually

WAIT = "echo up >/shared/ready; while ! test -e /shared/go; do sleep 0.1; done; "
#: Fails if another attempt of the task runs at the same time: each reads a FIFO while it lives, and
#: one that nobody reads cannot be opened by a writer.
ALONE = (
    "mkfifo /shared/alive 2>&-; timeout 1 sh -c 'echo >/shared/alive' &&"
    " { echo >/shared/overlap; exit 9; }; exec 9<>/shared/alive; "
)


class HasVariables(Protocol):
    variables: dict[str, str]  #: for a worker


S = TypeVar("S", bound=HasVariables)


class ContainerSite(Generic[S]):
    """Its storages, or daemons, have the images and containers of the workers."""

    def __init__(
        self,
        fleet: Fleet,
        host: str,
        storages: tuple[S, ...],
        shared: Path,
        *,
        flags: tuple[str, ...] = (),
        before: tuple[str, ...] = (),
    ) -> None:
        self.fleet = fleet
        self.host = host  #: of the registry
        self.storages = storages
        self.shared = shared  #: a folder that every container has as /shared
        self._flags = flags
        self._before = before

    @property
    def machine(self) -> Machine:
        return self.fleet.machines[0]

    async def work(self, name: str, *, storage: int = 0) -> Machine:
        machine = Machine(self.fleet.folder, name, self.fleet.server.url)
        self.fleet.machines.append(machine)
        await self.start(machine, storage=storage)
        return machine

    async def start(self, machine: Machine, *, storage: int = 0) -> None:
        mount = f"--container-mount={self.shared}:/shared"
        resources = "--resources=gpu=8,cpu=64,memory=512Gi"
        flags = (mount, resources, *self._flags)
        variables = self.storages[storage].variables
        await machine.start(*flags, before=self._before, **variables)
        await self.fleet.ready()

    async def submit(self, command: object, **fields: Any) -> str:
        fields["image"] = f"{self.host}/{fields.get('image', 'train:1')}"
        own: dict[str, Any] = {} if command is None else {"command": command}
        names = (
            "per_node",
            "replicas",
            "resources",
            "security",
            "env",
            "image",
            "args",
            "secret_files",
        )
        role = own | {name: fields.pop(name) for name in names if name in fields}
        return await self.fleet.submit(roles={"worker": role}, **fields)

    async def finished(self, command: object, **fields: Any) -> dict[str, Any]:
        job = await self.submit(command, **fields)
        return await self.fleet.reach(job, "done", "failed")

    async def refusal(self, **fields: Any) -> str:
        """Why a job that no worker can prepare fails without a start."""
        job = await self.submit("touch /shared/started", **fields)
        failed = await self.fleet.reach(job, "failed")
        assert not await self.records(job, "GangStarting")
        assert len(await self.records(job, "ReservationLost")) == 2
        return str(failed["cause"])

    async def records(self, job: str, kind: str) -> list[dict[str, Any]]:
        return [each for each in await self.fleet.events(job) if each["kind"] == kind]

    async def written(self, name: str) -> str:
        """The content of a file that a container writes to the shared folder."""
        path = self.shared / name

        async def exists() -> bool:
            return path.exists() and bool(path.read_text())

        await eventually(exists, PATIENCE_S, self.machine.log)
        return path.read_text().strip()

    async def logs(self, job: str) -> str:
        url = f"{self.fleet.server.url}/jobs/{job}/logs?task=0"
        return (await self.fleet.client.get(url)).text

    async def set_secret(self, name: str, values: dict[str, str]) -> None:
        url = f"{self.fleet.server.url}/secrets/default/{name}"
        answer = await self.fleet.client.put(url, json={"data": values})
        assert answer.status_code in (200, 201), answer.text

    async def clear(self) -> None:
        """End all jobs and empty the shared folder."""
        for job in (await self.fleet.get("/jobs?finished=false"))["jobs"]:
            # It may have ended by now.
            await self.fleet.client.delete(f"{self.fleet.server.url}/jobs/{job['id']}")
            await self.fleet.reach(job["id"], "cancelled", "done", "failed")
        for path in self.shared.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def child_named(pid: int, word: str) -> int:
    """The one child of a process with this word in its command line. Others may end meanwhile."""
    found = []
    for child in children(pid):
        with suppress(OSError):
            if word in Path(f"/proc/{child}/cmdline").read_text():
                found.append(child)
    [child] = found
    return child


def container_pids(machine: Machine) -> list[int]:
    """The processes in the control groups of a worker's tasks."""
    groups = map(Path, (machine.state / "cgroup").read_text().splitlines())
    listed = [file for group in groups for file in group.rglob("cgroup.procs")]
    return [int(pid) for file in listed for pid in file.read_text().split()]
