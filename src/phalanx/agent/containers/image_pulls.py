"""Pulls images: one pull at a time of each image, shared by all tasks that need it."""

import asyncio
import os
from collections.abc import Callable

from phalanx.agent.containers.podman_call import PodmanError, call_podman
from phalanx.agent.containers.runtime import ContainerRuntime

#: Images of this host are in the storage of the worker and in no registry.
_LOCAL = "localhost/"
#: A pull that takes longer is reported again, at intervals that double up to the longest.
_FIRST_REPORT_S = 10.0
_LONGEST_INTERVAL_S = 300.0

Report = Callable[[str], None]


class PullFailed(Exception):  # noqa: N818
    """The image cannot be had; the message has the answer of the registry."""


class ImagePulls:
    def __init__(self, runtime: ContainerRuntime) -> None:
        self._runtime = runtime
        #: By image and logins.
        self._pulls: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def ensure(self, image: str, registry_auth: str, report: Report) -> None:
        """Return when the image is in the storage of the worker. Raises PullFailed.

        An image by digest is pulled once. A tag is looked up in its registry each time. The caller
        that begins the pull gets the reports on it. `registry_auth` has logins in the form of
        Docker's config.json; if it is empty, those of the worker are used.
        """
        key = image, registry_auth
        pull = self._pulls.get(key)
        if pull is None:
            pull = asyncio.create_task(self._ensure(image, registry_auth, report))
            self._pulls[key] = pull
            pull.add_done_callback(lambda done: self._ended(key, done))
        await asyncio.shield(pull)  # the pull goes on for others if this caller is cancelled

    def _ended(self, key: tuple[str, str], done: "asyncio.Task[None]") -> None:
        del self._pulls[key]
        if not done.cancelled():
            done.exception()  # each caller has it

    async def _ensure(self, image: str, registry_auth: str, report: Report) -> None:
        is_fixed = "@" in image or image.startswith(_LOCAL)
        if is_fixed and await self._is_stored(image):
            return
        if image.startswith(_LOCAL):
            raise PullFailed(f"image {image} is not in the storage of this worker")
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        report(f"pulling image {image}")
        layers: set[str] = set()

        def on_line(line: str) -> None:
            if line.startswith("Copying blob "):
                layers.add(line.split(" ")[2])

        watch = asyncio.create_task(_report_pull(image, layers, report))
        try:
            await self._pull(image, registry_auth, on_line)
        except PodmanError as error:
            raise PullFailed(f"cannot pull image {image}: {error}") from None
        finally:
            watch.cancel()
        report(f"pulled image {image} in {loop.time() - began_at:.1f} s")

    async def _pull(self, image: str, registry_auth: str, on_line: Report) -> None:
        """Raises PodmanError."""
        source = f"docker://{image}"  # a registry, whatever the name of the image says
        if not registry_auth:
            await call_podman(self._runtime.command("pull", "--", source), on_line)
            return
        logins = os.memfd_create(
            "registry-auth"
        )  # in memory, without a name that others could open
        try:
            os.write(logins, registry_auth.encode())
            option = f"--authfile=/proc/self/fd/{logins}"
            command = self._runtime.command("pull", option, "--", source)
            await call_podman(command, on_line, (logins,))
        finally:
            os.close(logins)

    async def _is_stored(self, image: str) -> bool:
        try:
            await call_podman(self._runtime.command("image", "exists", "--", image))
        except PodmanError:
            return False
        return True


async def _report_pull(image: str, layers: set[str], report: Report) -> None:
    """Report from time to time on a pull that takes long."""
    total_s, interval_s = 0.0, _FIRST_REPORT_S
    while True:
        await asyncio.sleep(interval_s)
        total_s += interval_s
        interval_s = min(2 * interval_s, _LONGEST_INTERVAL_S)
        report(f"still pulling image {image} after {total_s:.0f} s ({len(layers)} layers)")
