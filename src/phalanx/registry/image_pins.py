"""Pins images: a tag becomes the digest that it has in its registry now."""

import asyncio

from phalanx.registry.image_reference import ImageReference
from phalanx.registry.logins import RegistryLogin
from phalanx.registry.registry_client import NotInRegistry, RegistryClient, RegistryError

#: A batch of jobs with the same tag reads its digest once.
_RECENT_S = 2.0
_RECENT_LIMIT = 1000
#: The registry of images that exist on a machine only and are never pulled.
LOCAL = "localhost"


class ImagePins:
    def __init__(self, *, is_required: bool = True) -> None:
        """If pins are not required, an image whose registry cannot be read keeps its tag."""
        #: Digests that were read a moment ago, by reference and login.
        self._recent: dict[tuple[str, RegistryLogin | None], tuple[float, str]] = {}
        self._is_required = is_required

    async def pin(self, image: str, credentials: RegistryLogin | None = None) -> str:
        """The reference with its digest. Raises RegistryError."""
        reference = ImageReference.parse(image)
        if reference.has_valid_digest or reference.registry == LOCAL:
            return image
        if reference.digest is not None:
            raise NotInRegistry(
                f"image {image} has an invalid digest; write @sha256: and 64 hexadecimal digits,"
                " or map the image with image_map"
            )
        key = image, credentials
        now_s = asyncio.get_running_loop().time()
        read_at, pinned = self._recent.get(key, (float("-inf"), ""))
        if now_s - read_at < _RECENT_S:
            return pinned
        try:
            async with RegistryClient(reference, credentials) as registry:
                manifest = await registry.manifest(reference.tag or "latest")
        except RegistryError as error:
            if not self._is_required:
                return image
            raise type(error)(f"image {image} cannot be pinned to a digest: {error}") from None
        if len(self._recent) >= _RECENT_LIMIT:
            self._recent.clear()
        pinned = f"{reference.name}@{manifest.digest}"
        self._recent[key] = now_s, pinned
        return pinned
