"""Reads manifests and blobs from a container registry, with the API of the OCI distribution.

Registries on loopback addresses are read over HTTP, all others over HTTPS.
"""

import asyncio
import base64
import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from phalanx.registry.image_reference import ImageReference
from phalanx.registry.logins import RegistryLogin

if TYPE_CHECKING:
    import httpx

_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_TIMEOUT_S = 10.0
#: All of an answer has to arrive within this time, however little each part delays it.
_ANSWER_S = 30.0
_LARGEST_BYTES = 4 * 1024**2
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class RegistryError(Exception):
    """A registry cannot be reached, or refuses; the message says which and why."""


class AccessRefused(RegistryError):  # noqa: N818
    """The registry does not give the image to this login."""


class NotInRegistry(RegistryError):  # noqa: N818
    """The registry has no such manifest."""


class Manifest(NamedTuple):
    digest: str
    data: bytes

    def json(self) -> Any:
        return json.loads(self.data)


class _Answer(NamedTuple):
    status_code: int
    headers: "httpx.Headers"
    content: bytes


class RegistryClient:
    """A connection to the registry of one image. Use it in `async with`."""

    def __init__(self, image: ImageReference, credentials: RegistryLogin | None = None) -> None:
        self._image = image
        self._credentials = credentials
        scheme = "http" if _is_loopback(image.registry) else "https"
        host = "registry-1.docker.io" if image.registry == "docker.io" else image.registry
        import httpx  # noqa: PLC0415, it would slow down every start of a server or worker

        self._client = httpx.AsyncClient(
            base_url=f"{scheme}://{host}/v2/{image.repository}/",
            timeout=_TIMEOUT_S,
            follow_redirects=True,
            trust_env=False,
        )
        self._authorization: str | None = None

    async def __aenter__(self) -> "RegistryClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def manifest(self, reference: str) -> Manifest:
        """The manifest of a tag or digest. Raises RegistryError."""
        data = await self._get(f"manifests/{reference}", {"Accept": _MANIFESTS})
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if reference.startswith("sha256:") and reference != digest:
            raise RegistryError(f"{self._where} has another manifest than its digest says")
        return Manifest(digest, data)

    async def blob(self, digest: str) -> bytes:
        """The content of a blob, which has that digest. Raises RegistryError."""
        data = await self._get(f"blobs/{digest}", {})
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise RegistryError(f"{self._where} has another blob than its digest says")
        return data

    @property
    def _where(self) -> str:
        return f"registry {self._image.registry}"

    async def _get(self, path: str, headers: Mapping[str, str]) -> bytes:
        own = {} if self._authorization is None else {"Authorization": self._authorization}
        answer = await self._read(path, {**headers, **own})
        if answer.status_code == HTTPStatus.UNAUTHORIZED and self._authorization is None:
            await self._authorize(answer.headers.get("www-authenticate", ""))
            if self._authorization is not None:
                return await self._get(path, headers)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise NotInRegistry(f"{self._where} has no {self._object(path)}")
        if answer.status_code in _REFUSED:
            raise AccessRefused(
                f"{self._where} refuses access to {self._image.repository}"
                f" {self._login} (status {answer.status_code})"
            )
        if answer.status_code != HTTPStatus.OK:
            raise RegistryError(
                f"{self._where} answered {answer.status_code} for {self._image.repository}"
            )
        return answer.content

    async def _read(
        self, url: str, headers: Mapping[str, str], params: Mapping[str, str] | None = None
    ) -> "_Answer":
        """An answer of limited size, in limited time: any user can name any registry. Raises
        RegistryError."""
        import httpx  # noqa: PLC0415

        content = bytearray()
        try:
            async with (
                asyncio.timeout(_ANSWER_S),
                self._client.stream("GET", url, headers=headers, params=params) as answer,
            ):
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _LARGEST_BYTES:
                        raise RegistryError(f"{self._where} sent more than {_LARGEST_BYTES} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise RegistryError(f"{self._where} cannot be reached: {reason}") from None
        except TimeoutError:
            why = f"{self._where} did not answer within {_ANSWER_S:.0f} s"
            raise RegistryError(why) from None
        return _Answer(answer.status_code, answer.headers, bytes(content))

    def _object(self, path: str) -> str:
        """What a path names, in words."""
        kind, _, reference = path.partition("/")
        if kind == "blobs":
            return f"blob {reference} of {self._image.repository}"
        separator = "@" if reference.startswith("sha256:") else ":"
        return f"image {self._image.repository}{separator}{reference}"

    @property
    def _login(self) -> str:
        if self._credentials is None:
            return "without a login"
        return f"for user {self._credentials.username}"

    async def _authorize(self, challenge: str) -> None:
        """Get what the registry asks for: a token, or the name and the password."""
        scheme, _, rest = challenge.partition(" ")
        basic = None
        if self._credentials is not None:
            pair = f"{self._credentials.username}:{self._credentials.password}"
            basic = "Basic " + base64.b64encode(pair.encode()).decode()
        if scheme.lower() != "bearer":
            self._authorization = basic
            return
        fields = dict(_CHALLENGE.findall(rest))
        realm = fields.pop("realm", "")
        if not _is_safe(realm):
            raise RegistryError(f"{self._where} wants a token from {realm or 'nowhere'}")
        answer = await self._read(realm, {"Authorization": basic} if basic else {}, fields)
        try:
            token = json.loads(answer.content) if answer.status_code == HTTPStatus.OK else {}
            value = token.get("token") or token.get("access_token")
        except (ValueError, AttributeError):
            raise RegistryError(f"{self._where} got no token from {realm}") from None
        self._authorization = f"Bearer {value}" if value else None


def _is_safe(url: str) -> bool:
    """Whether a password can be sent there: over TLS, or to this machine."""
    try:
        place = urlsplit(url)
    except ValueError:
        return False
    return place.scheme == "https" or (place.scheme == "http" and _is_loopback(place.netloc))


def _is_loopback(registry: str) -> bool:
    host = registry.rpartition(":")[0] if re.search(r":\d+$", registry) else registry
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
