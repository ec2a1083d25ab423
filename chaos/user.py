"""The user of the cluster: submits, cancels and asks, again and again until there is an answer."""

import asyncio
from typing import Any

import httpx

from chaos.schedule import PlannedJob

_RETRY_S = 0.3
_TIMEOUT_S = 5.0


class User:
    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S)
        self.acknowledged: dict[str, str] = {}  #: names of jobs → ids that the server returned
        self.cancelled: set[str] = set()  #: names of jobs whose cancellation was acknowledged

    async def close(self) -> None:
        await self._client.aclose()

    async def submit(self, job: PlannedJob) -> str:
        reply = await self._call(
            "POST", "/jobs", json=job.document, headers={"Idempotency-Key": job.name}
        )
        if reply.status_code not in (200, 201):
            raise AssertionError(f"job {job.name} was refused: {reply.text}")
        self.acknowledged[job.name] = str(reply.json()["id"])
        return self.acknowledged[job.name]

    async def cancel(self, job: PlannedJob) -> None:
        self.cancelled.add(job.name)
        await self._call("DELETE", f"/jobs/{self.acknowledged[job.name]}")

    async def drain(self, worker: str) -> None:
        await self._call("POST", f"/workers/{worker}/drain")

    async def uncordon(self, worker: str) -> None:
        await self._call("POST", f"/workers/{worker}/uncordon")

    async def get(self, path: str) -> Any:
        """The JSON of an answer; None for 404."""
        reply = await self._call("GET", path)
        return None if reply.status_code == 404 else reply.json()

    async def jobs(self) -> list[dict[str, Any]]:
        """Every job that the server has, finished or not."""
        jobs: list[dict[str, Any]] = []
        path = "/jobs?limit=500"
        while True:
            page = await self.get(path)
            jobs += page["jobs"]
            if not page.get("cursor"):
                return jobs
            path = f"/jobs?limit=500&cursor={page['cursor']}"

    async def workers(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = await self.get("/workers")
        return listed

    async def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """The first answer of a leader that is not a failure of the server."""
        while True:
            for url in self._urls:
                try:
                    reply = await self._client.request(method, url + path, **arguments)
                except httpx.HTTPError:
                    continue
                if reply.status_code < 500 and reply.status_code not in (307, 429):
                    return reply
            await asyncio.sleep(_RETRY_S)
