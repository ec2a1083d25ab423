"""The servers and the token of a client: from arguments, the environment, or a file.

The file is `phalanx/client.toml` in the user's configuration directory. It has `server`, one URL or
a list, and `token`.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: The address at which `phalanx serve` listens by default.
DEFAULT_SERVER = "http://127.0.0.1:8080"
SERVER_VARIABLE = "PHALANX_SERVER"
TOKEN_VARIABLE = "PHALANX_TOKEN"  # noqa: S105


class ClientSettings(NamedTuple):
    servers: tuple[str, ...]
    token: str | None
    is_default: bool  #: no servers were configured


def load(
    servers: str | Iterable[str] | None = None,
    token: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ClientSettings:
    """The settings in force. Raises ValueError with the problem and its source."""
    environ = os.environ if environ is None else environ
    path = _file(environ)
    file = _read(path)
    named = servers or environ.get(SERVER_VARIABLE) or file.get("server")
    origin = "server" if servers else SERVER_VARIABLE
    if not servers and not environ.get(SERVER_VARIABLE):
        origin = f"{path}: server"
    return ClientSettings(
        servers=_urls(named, origin) or (DEFAULT_SERVER,),
        token=token or environ.get(TOKEN_VARIABLE) or file.get("token"),
        is_default=not named,
    )


def _file(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "phalanx" / "client.toml"


def _read(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML{_position(error)}; correct it") from None
    for key in document.keys() - {"server", "token"}:
        raise ValueError(f"{path}: {key} is not a setting; the settings are server and token")
    server = document.get("server", "")
    if not isinstance(server, str | list):
        raise ValueError(f"{path}: server is {server!r}; write it like {DEFAULT_SERVER!r}")  # noqa: TRY004
    if not isinstance(document.get("token", ""), str):
        raise ValueError(f"{path}: token is not a string; write it in quotes")  # noqa: TRY004
    return document


def _position(error: ValueError) -> str:
    """` at line 1, column 8`, from the end of the parser's message."""
    at = re.search(r" \((at .*)\)$", str(error))
    return f" {at[1]}" if at else ""


def _urls(named: Any, origin: str) -> tuple[str, ...]:
    if named is None:
        return ()
    urls = named.split(",") if isinstance(named, str) else list(named)
    for url in urls:
        if not isinstance(url, str) or not url.strip().startswith(("http://", "https://")):
            raise ValueError(f"{origin} is {url!r}; write it like {DEFAULT_SERVER}")
    return tuple(url.strip().rstrip("/") for url in urls)
