"""The configuration of a server, and where each value came from.

A flag wins over an environment variable, a variable over the file, and the file over the default.
All problems are reported at once, each with its place.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from msgspec.structs import replace

from phalanx.core.errors import Invalid
from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import SECOND
from phalanx.engine.settings import EngineSettings
from phalanx.server.options import BY_NAME, OPTIONS, PREFIX, Option, TlsMode

FILE_VARIABLE = f"{PREFIX}CONFIG"
_TOML_PLACE = re.compile(r"at line (\d+), column (\d+)")
#: A variable at least this similar to a setting's is taken for a misspelling.
_SIMILARITY = 0.85


class ConfigError(Exception):
    """A configuration that was refused, with all its problems."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class Given(NamedTuple):
    """A value as written, and where it was written."""

    value: object
    origin: str


class Config:
    """The settings of one server; `config["lease"]` is the value in its normal form."""

    def __init__(self, given: Mapping[str, Given], file: Path | None = None) -> None:
        """Raises ConfigError."""
        self.file = file
        self.origins: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        problems: list[str] = []
        for option in OPTIONS:
            written = given.get(option.name)
            self.origins[option.name] = "default" if written is None else written.origin
            self._values[option.name] = option.default
            if written is not None:
                try:
                    self._values[option.name] = option.read(written.value)
                except Invalid as error:
                    problems += [
                        f"{written.origin}: {option.name} {problem.message}"
                        for problem in error.problems
                    ]
        if not problems:
            problems = list(self._contradictions())
        if problems:
            raise ConfigError(problems)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def shown(self, option: Option) -> str:
        return option.shown(self[option.name])

    def engine(self) -> EngineSettings:
        fields: dict[str, dict[str, Any]] = {"engine": {}, "core": {}}
        for option in OPTIONS:
            if option.target:
                part, _, field = option.target.partition(".")
                fields[part][field] = self[option.name]
        # Two clocks may drift apart by up to 1 % of the time in which a worker was silent.
        fence_slack = round((5 + self["lost_after"] / 100) * SECOND)
        core = replace(CoreSettings(), fence_slack=fence_slack, **fields["core"])
        return replace(EngineSettings(), core=core, **fields["engine"])

    def _contradictions(self) -> list[str]:
        """Problems of settings that exclude each other."""
        problems = []
        if self["lost_after"] <= self["sync_wait"]:
            problems.append(
                f"{self._where('lost_after')} must be longer than {self._where('sync_wait')}:"
                " an agent does not report while its sync call is held open"
            )
        if (self["tls_cert"] is None) != (self["tls_key"] is None):
            problems.append("tls_cert and tls_key belong together; set both or neither")
        if self["tls"] == TlsMode.AUTO and self["tls_cert"] is not None:
            problems.append("tls auto makes its own certificate; set tls to off, or omit tls_cert")
        return problems

    def _where(self, name: str) -> str:
        return f"{name} ({self.shown(BY_NAME[name])}, {self.origins[name]})"


def find_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file named by the flag or the variable, else the first default location that exists."""
    named = flag or environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    home = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    usual = (home / "phalanx" / "phalanx.toml", Path("/etc/phalanx/phalanx.toml"))
    return next((path for path in usual if path.is_file()), None)


def load(
    flags: Mapping[str, object],
    *,
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration of this process. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    path = find_file(file, environ)
    given = {} if path is None else _from_file(path, problems)
    given |= _from_environment(environ, problems)
    given |= {
        name: Given(value, BY_NAME[name].flag) for name, value in flags.items() if value is not None
    }
    if _has_password(flags.get("store")):
        problems.append(
            "--store: has a password, which other users can read on the command line; put it into"
            " ~/.pgpass, PGPASSWORD or PHALANX_STORE"
        )
    try:
        config = Config(given, path)
    except ConfigError as error:
        problems += error.problems
    else:
        if not problems:
            return config
    raise ConfigError(problems)


def _has_password(store: object) -> bool:
    if not isinstance(store, str) or not store.startswith("postgres"):
        return False
    url = urlsplit(store)
    return url.password is not None or "password" in parse_qs(url.query)


def _from_file(path: Path, problems: list[str]) -> dict[str, Given]:
    try:
        written = path.read_text("utf-8")
        document = tomllib.loads(written)
    except OSError as error:
        problems.append(
            f"{path}: cannot be read: {error.strerror or type(error).__name__};"
            f" name another file with --config or {FILE_VARIABLE}"
        )
        return {}
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8 text; write the file as TOML in UTF-8")
        return {}
    except tomllib.TOMLDecodeError as error:
        problems.append(_not_toml(path, str(error)))
        return {}
    given = {}
    for key, value in document.items():
        origin = f"{path}:{_line_of(key, written)}"
        if key in BY_NAME:
            given[key] = Given(value, origin)
        else:
            problems.append(f"{origin}: {key} is not a setting; {_suggestion(key)}")
    return given


def _not_toml(path: Path, error: str) -> str:
    """The problem of a file that is not TOML, with the line and column from the parser's error."""
    place = _TOML_PLACE.search(error)
    where = path if place is None else f"{path}:{place[1]}"
    column = "" if place is None else f" (column {place[2]})"
    return f'{where}: is not TOML{column}; write each setting like lost_after = "45s"'


def _line_of(key: str, written: str) -> int:
    """The line of a top-level key, which tomllib does not report."""
    pattern = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    lines = enumerate(written.splitlines(), 1)
    return next((number for number, line in lines if pattern.match(line)), 1)


def _suggestion(key: str) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), BY_NAME, n=1)
    return f"did you mean {near[0]}?" if near else "`phalanx config` lists them"


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Given]:
    """The settings among the environment variables. Tasks and clients have variables with the same
    prefix, which are ignored."""
    known = {option.variable: option for option in OPTIONS}
    given = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name == FILE_VARIABLE:
            continue
        if name in known:
            given[known[name].name] = Given(environ[name], name)
            continue
        near = difflib.get_close_matches(
            name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in known], 1, _SIMILARITY
        )
        if near:
            problems.append(f"{name}: is not a setting; did you mean {PREFIX}{near[0]}?")
    return given


def state_directory(environ: Mapping[str, str]) -> Path:
    """The default directory of the database: the system's for root, else the user's."""
    if environ.get("STATE_DIRECTORY"):  # systemd
        return Path(environ["STATE_DIRECTORY"].partition(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/phalanx")
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "phalanx"
