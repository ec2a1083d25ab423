"""`python -m tests.fuzz.manifests --mutants 10000`: mutants of manifests against a real server.

Fails on a status of 500 or above, on an answer to a small request that takes over a second, and on
memory that grows after the first fifth. Every accepted job is cancelled.
"""

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from tests.fuzz.mutants import Mutant, mutants
from tests.integration.server.processes import ServerProcess, sqlite_at

_STALL_S = 1.0
_GROWTH_MIB = 32
_SENDERS = 4
_PAUSE_S = 0.02
#: The share of mutants after which caches are filled.
_WARM = 0.2


class Fuzzing:
    """One run: the answers so far, and what was wrong."""

    def __init__(self, client: httpx.AsyncClient, pid: int, count: int) -> None:
        self._client = client
        self._pid = pid
        self._count = count
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self.longest_s = 0.0
        self.warm_mib = 0.0

    async def run(self, seed: int) -> None:
        numbered = enumerate(mutants(seed, self._count))
        url = str(self._client.base_url)
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        watcher = context.Process(target=watch, args=(url, theirs), daemon=True)
        watcher.start()
        await asyncio.gather(*(self._send(numbered) for _ in range(_SENDERS)))
        ours.send("stop")
        self.longest_s = await asyncio.to_thread(ours.recv)
        watcher.join()
        if self.longest_s > _STALL_S:
            self.failures.append(f"a small request took {self.longest_s:.2f} s")
        if self.grown_mib > _GROWTH_MIB:
            self.failures.append(f"the server has grown by {self.grown_mib:.0f} MiB")

    @property
    def grown_mib(self) -> float:
        return self.resident_mib() - self.warm_mib

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self._pid}/status").read_text()
        [size] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        return int(size) / 1024

    async def _send(self, numbered: Iterator[tuple[int, Mutant]]) -> None:
        for number, mutant in numbered:
            if number == int(_WARM * self._count):
                self.warm_mib = self.resident_mib()
            reply = await self._client.request(
                mutant.method,
                mutant.path,
                content=mutant.data,
                headers={"content-type": "application/yaml"},
            )
            self.statuses[reply.status_code] += 1
            if reply.status_code >= 500:
                self.failures.append(f"mutant {number}: {reply.status_code} {reply.text[:200]}")
            elif reply.status_code < 300:
                await self._remove(reply.json())
            if number % 1000 == 999:
                print(f"{number + 1} mutants, {self.resident_mib():.0f} MiB", flush=True)  # noqa: T201

    async def _remove(self, accepted: Any) -> None:
        """Cancel the jobs, and remove the crons, of a reply."""
        items = accepted.get("results", [{"job": accepted}]) if isinstance(accepted, dict) else []
        for item in items:
            job, cron = item.get("job") or {}, item.get("cron") or {}
            if str(job.get("id", "")).startswith("j-"):
                await self._client.delete(f"/jobs/{job['id']}")
            cron = cron or (job if "cron" in job and "next_at" in job else {})
            if cron:
                await self._client.delete(f"/crons/{cron['namespace']}/{cron['name']}")


def watch(url: str, pipe: Connection) -> None:
    """Measure small requests of another user until told to stop, in a process of their own: making
    mutants takes time as well."""
    longest_s = 0.0
    with httpx.Client(base_url=url, timeout=60) as client:
        while not pipe.poll(_PAUSE_S):
            began = time.monotonic()
            client.get("/readyz")
            longest_s = max(longest_s, time.monotonic() - began)
    pipe.send(longest_s)


async def fuzz(seed: int, count: int) -> Fuzzing:
    with tempfile.TemporaryDirectory() as folder:
        server = await ServerProcess.start(sqlite_at(Path(folder)), "fuzzed", "--image-pinning=off")
        try:
            await server.line("leading")
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                fuzzing = Fuzzing(client, server.pid, count)
                await fuzzing.run(seed)
                return fuzzing
        finally:
            await server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    result = asyncio.run(fuzz(given.seed, given.mutants))
    print(  # noqa: T201
        f"{given.mutants} mutants from seed {given.seed}: {dict(sorted(result.statuses.items()))};"
        f" longest small request {1000 * result.longest_s:.0f} ms"
    )
    print("\n".join(result.failures) or "no failures")  # noqa: T201
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
