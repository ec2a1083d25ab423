"""The servers, the token and the pin of a client: from arguments, the environment, or a file.

The file is `phalanx/client.toml` in the user's configuration directory. It has `server`, one URL or
a list, `token`, `fingerprint`, that of the servers' certificate authority, and `namespace`, that of
jobs that name none.
"""

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.tls.fingerprint import read_fingerprint

#: The address at which `phalanx serve` listens by default.
DEFAULT_SERVER = "http://127.0.0.1:8080"
SERVER_VARIABLE = "PHALANX_SERVER"
TOKEN_VARIABLE = "PHALANX_TOKEN"  # noqa: S105
TOKEN_FILE_VARIABLE = "PHALANX_TOKEN_FILE"  # noqa: S105
FINGERPRINT_VARIABLE = "PHALANX_FINGERPRINT"
NAMESPACE_VARIABLE = "PHALANX_NAMESPACE"
_SETTINGS = ("server", "token", "fingerprint", "namespace")
#: A server without its scheme.
_HOST = re.compile(r"\s*(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\]):[0-9]+/?\s*")
_TOKEN = re.compile(r"[!-~]+")


class ClientSettings(NamedTuple):
    servers: tuple[str, ...]
    token: str | None
    is_default: bool  #: no servers were configured
    fingerprint: str | None = None  #: of the certificate authority that is trusted, and no other
    namespace: str | None = None  #: of jobs, crons and secrets that name none
    folder: Path = Path()  #: the file's, with the pinned certificates


def load(  # noqa: PLR0913
    servers: str | Iterable[str] | None = None,
    token: str | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    token_file: str | Path | None = None,
    fingerprint: str | None = None,
    namespace: str | None = None,
) -> ClientSettings:
    """The settings in force. Raises ValueError with the problem and its source."""
    environ = os.environ if environ is None else environ
    path = settings_file(environ)
    file = _read(path)
    named = servers or environ.get(SERVER_VARIABLE) or file.get("server")
    origin = "server" if servers else SERVER_VARIABLE
    if not servers and not environ.get(SERVER_VARIABLE):
        origin = f"{path}: server"
    urls = _urls(named, origin) or (DEFAULT_SERVER,)
    # The pin of the file is for the servers of the file, and the token is sent to no other.
    is_of_file = set(urls) <= set(_urls(file.get("server"), f"{path}: server"))
    own = file.get("token") if is_of_file or "server" not in file else None
    pin = fingerprint or environ.get(FINGERPRINT_VARIABLE)
    pin = pin or (file.get("fingerprint") if is_of_file else None)
    return ClientSettings(
        servers=urls,
        token=_token(token, "") or _given_token(token_file, environ) or _token(own, f" in {path}"),
        is_default=not named,
        fingerprint=pin_for(pin, urls) if pin else None,
        namespace=namespace
        or environ.get(NAMESPACE_VARIABLE)
        or (file.get("namespace") if is_of_file else None),
        folder=path.parent,
    )


def token_in(file: str | Path) -> str:
    """The token in a file; `-` is standard input. Raises ValueError."""
    try:
        token = (sys.stdin.read() if str(file) == "-" else Path(file).read_text("utf-8")).strip()
    except OSError as error:
        raise ValueError(f"--token-file: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--token-file: {file} is not text; write the token into it") from None
    if not token:
        raise ValueError(f"--token-file: {file} is empty; write the token into it")
    return _token(token, f" in {file}") or ""


def token_variable(environ: Mapping[str, str]) -> str | None:
    """The token in the environment. Raises ValueError."""
    return _token(environ.get(TOKEN_VARIABLE), f" in {TOKEN_VARIABLE}")


def _token(token: str | None, origin: str) -> str | None:
    """The token, if it can be sent. Raises ValueError, without the token in the message."""
    if token and not _TOKEN.fullmatch(token):
        raise ValueError(
            f"the token{origin} has characters that a token cannot have; copy it again: it has only"
            " ASCII letters, digits and signs, and no spaces or line breaks"
        )
    return token


def _given_token(file: str | Path | None, environ: Mapping[str, str]) -> str | None:
    """The token in the file that the caller or a variable names, or else in a variable."""
    file = file or environ.get(TOKEN_FILE_VARIABLE)
    return token_in(file) if file else token_variable(environ)


def pin_for(fingerprint: str, urls: tuple[str, ...]) -> str:
    """The fingerprint in its normal form. Raises ValueError, also if a server has no TLS."""
    for url in urls:
        if not url.startswith("https://"):
            raise ValueError(f"a fingerprint needs TLS, and {url} has none; write https://")
    return read_fingerprint(fingerprint)


def settings_file(environ: Mapping[str, str]) -> Path:
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
    for key in document.keys() - set(_SETTINGS):
        raise ValueError(f"{path}: {key} is not a setting; the settings are {', '.join(_SETTINGS)}")
    server = document.get("server", "")
    if not isinstance(server, str | list):
        raise ValueError(f"{path}: server is {server!r}; write it like {DEFAULT_SERVER!r}")  # noqa: TRY004
    for key in ("token", "fingerprint", "namespace"):
        if not isinstance(document.get(key, ""), str):
            raise ValueError(f"{path}: {key} is not a string; write it in quotes")  # noqa: TRY004
    return document


def _position(error: ValueError) -> str:
    """` at line 1, column 8`, from the end of the parser's message."""
    at = re.search(r" \((at .*)\)$", str(error))
    return f" {at[1]}" if at else ""


def _urls(named: Any, origin: str) -> tuple[str, ...]:
    if named is None:
        return ()
    urls = named.split(",") if isinstance(named, str) else list(named)
    urls = [_with_scheme(url) for url in urls]
    for url in urls:
        if not isinstance(url, str) or not url.strip().startswith(("http://", "https://")):
            raise ValueError(f"{origin} is {url!r}; write it like {DEFAULT_SERVER}")
    return tuple(url.strip().rstrip("/") for url in urls)


def _with_scheme(url: Any) -> Any:
    """`localhost:8080` as a URL."""
    is_host = isinstance(url, str) and _HOST.fullmatch(url)
    return f"http://{url.strip()}" if is_host else url
