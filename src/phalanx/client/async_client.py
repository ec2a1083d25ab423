"""`phalanx.AsyncClient`: the operations of the API for asyncio."""

from collections.abc import Iterable

from phalanx.client import settings
from phalanx.client.asyncio_http import AsyncioHttp
from phalanx.client.operations import Operations


class AsyncClient(Operations):
    """A connection to the servers of one cluster, with the methods of `Client` as coroutines and
    asynchronous iterators. Use it in one event loop."""

    def __init__(  # noqa: PLR0913
        self,
        servers: str | Iterable[str] | None = None,
        token: str | None = None,
        *,
        fingerprint: str | None = None,
        namespace: str | None = None,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
    ) -> None:
        """The arguments are those of `Client`. Raises ValueError as `Client` does."""
        loaded = settings.load(servers, token, fingerprint=fingerprint, namespace=namespace)
        super().__init__(loaded, AsyncioHttp(), timeout_s=timeout_s, patience_s=patience_s)

    def __repr__(self) -> str:
        return f"AsyncClient({', '.join(map(repr, self.servers))})"

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
