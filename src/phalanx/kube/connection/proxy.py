"""Which proxy a connection uses: the kubeconfig file's, else the environment's."""

import ipaddress
import os
from urllib.parse import urlsplit

from phalanx.kube.connection.errors import ConnectionConfigError


def checked_proxy(url: str, owner: str) -> str:
    """The URL of a proxy. Raises ConnectionConfigError for a kind that is not supported."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConnectionConfigError(
            f"{owner}: the proxy {url} is not supported; use a proxy with http:// or https://"
        )
    return url


def environment_proxy(server: str) -> str | None:
    """The proxy of `HTTPS_PROXY` or `HTTP_PROXY`, unless `NO_PROXY` names the server."""
    parts = urlsplit(server)
    host = (parts.hostname or "").lower()
    name = f"{parts.scheme}_proxy"
    proxy = os.environ.get(name) or os.environ.get(name.upper())
    if not proxy or _is_loopback(host):
        return None
    exceptions = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if any(_matches(host, entry.strip().lower()) for entry in exceptions.split(",")):
        return None
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", name.upper())


def _matches(host: str, entry: str) -> bool:
    """Whether an entry of `NO_PROXY` names the host: `*`, a network, an address or a domain."""
    if not entry:
        return False
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        domain = entry.removeprefix("*").lstrip(".").partition(":")[0]
        return host == domain or host.endswith(f".{domain}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
