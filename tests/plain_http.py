"""HTTP clients for servers without TLS. They do not load the authorities of the system, which takes
longer than most requests."""

import ssl
from typing import Any

import httpx

_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def http_client(url: str = "", **given: Any) -> httpx.Client:
    return httpx.Client(base_url=url, verify=_NO_AUTHORITIES, **given)


def async_http_client(url: str = "", **given: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, verify=_NO_AUTHORITIES, **given)
