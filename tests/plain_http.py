"""HTTP clients for servers without TLS. They do not load the authorities of the system, which takes
longer than most requests, and they wait for a server that is suspended for a while."""

import ssl
from typing import Any

import httpx

_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
#: The default of httpx is 5 s.
_PATIENCE: dict[str, Any] = {"timeout": 60}


def http_client(url: str = "", **given: Any) -> httpx.Client:
    return httpx.Client(base_url=url, **{"verify": _NO_AUTHORITIES, **_PATIENCE, **given})


def async_http_client(url: str = "", **given: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, **{"verify": _NO_AUTHORITIES, **_PATIENCE, **given})
