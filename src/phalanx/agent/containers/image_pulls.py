"""Pulls images: one pull at a time of each image, shared by all tasks that need it.

An image in the storage of the worker is given only to jobs whose logins its registry accepts: the
job of one namespace may have pulled what another namespace must not have.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable

from phalanx.agent.containers.runtime import ContainerRuntime
from phalanx.agent.containers.runtime_call import RuntimeCallError
from phalanx.registry.image_reference import ImageReference

#: Images of this host are in the storage of the worker and in no registry.
_LOCAL = "localhost/"
#: A pull that takes longer is reported again, at intervals that double up to the longest.
_FIRST_REPORT_S = 10.0
_LONGEST_INTERVAL_S = 300.0
#: For so long the worker does not ask a registry again whether the same logins get an image.
_GRANT_S = 600.0
_MOST_GRANTS = 10_000
#: Answers of a registry that does not have the image, or does not give it with these logins.
_REFUSALS = re.compile(
    r"manifest unknown|name unknown|not found|has no image|refuses access"
    r"|no basic auth credentials|unauthorized|authentication required|denied"
    r"|invalid username/password|status ?code\D{1,20}40[0134]|signature|rejected by policy",
    re.IGNORECASE,
)

Report = Callable[[str], None]


class PullFailed(Exception):  # noqa: N818
    """The image cannot be had; the message has the answer of the registry."""


class PullRefused(PullFailed):
    """The registry does not have the image, or does not give it with these logins."""


class ImagePulls:
    def __init__(self, runtime: ContainerRuntime) -> None:
        self._runtime = runtime
        #: By image and logins.
        self._pulls: dict[tuple[str, str], asyncio.Task[None]] = {}
        #: When the registry last gave an image by digest, by the image and a hash of the logins.
        self._granted_at: dict[tuple[str, bytes], float] = {}

    async def ensure(self, image: str, registry_auth: str, report: Report) -> None:
        """Return when the image is in the storage of the worker. Raises PullFailed. An image of
        this host is not looked for, because every command of a runtime takes time.

        A registry is asked each time whether it gives the image with these logins, except a moment
        ago for the same digest. Layers that are in the storage are not sent again. The caller that
        begins the pull gets the reports on it. `registry_auth` has logins in the form of Docker's
        config.json; if it is empty, those of the worker are used.
        """
        if image.startswith(_LOCAL):
            return
        key = image, registry_auth
        pull = self._pulls.get(key)
        if pull is None:
            granted_at = self._granted_at.get(_grant(image, registry_auth), float("-inf"))
            if asyncio.get_running_loop().time() < granted_at + _GRANT_S:
                return
            pull = asyncio.create_task(self._ensure(image, registry_auth, report))
            self._pulls[key] = pull
            pull.add_done_callback(lambda done: self._ended(key, done))
        await asyncio.shield(pull)  # the pull goes on for others if this caller is cancelled

    def forget(self, image: str) -> None:
        """Note that an image is not in the storage of the worker. Raises PullRefused if it is in no
        registry either."""
        if image.startswith(_LOCAL):
            raise PullRefused(f"image {image} is not in the storage of this worker")
        for grant in [each for each in self._granted_at if each[0] == image]:
            del self._granted_at[grant]

    def _ended(self, key: tuple[str, str], done: "asyncio.Task[None]") -> None:
        del self._pulls[key]
        if not done.cancelled():
            done.exception()  # each caller has it

    async def _ensure(self, image: str, registry_auth: str, report: Report) -> None:
        is_stored = "@" in image and await self._runtime.has_image(image)
        grant = _grant(image, registry_auth)
        try:
            await self._pull(image, registry_auth, (lambda _: None) if is_stored else report)
        except PullRefused:
            self._granted_at.pop(grant, None)
            raise
        except PullFailed:
            if not is_stored or grant not in self._granted_at:
                raise
            return  # the registry does not answer, and gave the image with these logins before
        if "@" in image:
            if len(self._granted_at) >= _MOST_GRANTS:
                self._granted_at.clear()
            self._granted_at[grant] = asyncio.get_running_loop().time()

    async def _pull(self, image: str, registry_auth: str, report: Report) -> None:
        """Raises PullFailed."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        report(f"pulling image {image}")
        layers: set[str] = set()
        watch = asyncio.create_task(_report_pull(image, layers, report))
        try:
            await self._runtime.pull(image, registry_auth, layers.add)
        except RuntimeCallError as error:
            kind = PullRefused if is_refusal(image, str(error)) else PullFailed
            raise kind(f"cannot pull image {image}: {error}") from None
        finally:
            watch.cancel()
        report(f"pulled image {image} in {loop.time() - began_at:.1f} s")


def _grant(image: str, registry_auth: str) -> tuple[str, bytes]:
    return image, hashlib.sha256(registry_auth.encode()).digest()


def is_refusal(image: str, message: str) -> bool:
    """Whether the registry has refused; the name of an image may contain any word."""
    repository = ImageReference.parse(image).repository
    return _REFUSALS.search(message.replace(repository, "")) is not None


async def _report_pull(image: str, layers: set[str], report: Report) -> None:
    """Report from time to time on a pull that takes long."""
    total_s, interval_s = 0.0, _FIRST_REPORT_S
    while True:
        await asyncio.sleep(interval_s)
        total_s += interval_s
        interval_s = min(2 * interval_s, _LONGEST_INTERVAL_S)
        report(f"still pulling image {image} after {total_s:.0f} s ({len(layers)} layers)")
