"""The parts of an image reference: `registry/repository:tag@digest`."""

import re
from typing import NamedTuple

_DEFAULT_REGISTRY = "docker.io"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ImageReference(NamedTuple):
    registry: str
    repository: str
    tag: str | None
    digest: str | None

    @classmethod
    def parse(cls, written: str) -> "ImageReference":
        """The parts as Docker reads them: an image without a registry is of docker.io, and one
        without a tag and a digest has the tag latest."""
        name, _, digest = written.partition("@")
        first, slash, rest = name.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            registry, path = first, rest
        else:
            registry, path = _DEFAULT_REGISTRY, name
        repository, colon, tag = path.partition(":")
        if registry == _DEFAULT_REGISTRY and "/" not in repository:
            repository = f"library/{repository}"
        if not colon and not digest:
            tag = "latest"
        return cls(registry, repository, tag or None, digest or None)

    @property
    def has_valid_digest(self) -> bool:
        return self.digest is not None and _DIGEST.fullmatch(self.digest) is not None

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"
