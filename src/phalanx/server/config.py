"""What is in force and where it came from: flags, then variables, then the file, then defaults.

Everything that is wrong is said at once, each with its place.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from phalanx.core.errors import Invalid
from phalanx.core.settings import CoreSettings
from phalanx.core.spec.job import SECOND
from phalanx.engine.settings import EngineSettings
from phalanx.server.options import BY_NAME, OPTIONS, PREFIX, Option

FILE_VARIABLE = f"{PREFIX}CONFIG"
#: A variable that is this close to one of ours was meant to be it.
_LOOKS_LIKE = 0.85


class ConfigError(Exception):
    """A configuration that was refused, with every problem in it."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class Given(NamedTuple):
    """A value as it was written, and where."""

    value: object
    origin: str


class Config:
    """The settings of one server. `config["lease"]` is a value in its normal form."""

    def __init__(self, given: Mapping[str, Given], file: Path | None = None) -> None:
        """Raises ConfigError."""
        self.file = file
        self.origins: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        problems: list[str] = []
        for option in OPTIONS:
            found = given.get(option.name)
            self.origins[option.name] = "default" if found is None else found.origin
            self._values[option.name] = option.default
            if found is not None:
                try:
                    self._values[option.name] = option.read(found.value)
                except Invalid as error:
                    problems += [
                        f"{found.origin}: {option.name} {problem.message}"
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
        # Clocks may differ by a hundredth of the time for which the worker was silent.
        fence_slack = round((5 + self["lost_after"] / 100) * SECOND)
        core = replace(CoreSettings(), fence_slack=fence_slack, **fields["core"])
        return replace(EngineSettings(), core=core, **fields["engine"])

    def _contradictions(self) -> list[str]:
        """Settings that cannot hold together."""
        found = []
        if self["lost_after"] <= self["sync_wait"]:
            found.append(
                f"{self._where('lost_after')} must be longer than {self._where('sync_wait')}:"
                " a call that is held is silence"
            )
        if (self["tls_cert"] is None) != (self["tls_key"] is None):
            found.append("tls_cert and tls_key belong together; give both or neither")
        return found

    def _where(self, name: str) -> str:
        return f"{name} ({self.shown(BY_NAME[name])}, {self.origins[name]})"


def find_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file that was named, or the first of the usual ones that is there."""
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
    try:
        config = Config(given, path)
    except ConfigError as error:
        problems += error.problems
    else:
        if not problems:
            return config
    raise ConfigError(problems)


def _from_file(path: Path, problems: list[str]) -> dict[str, Given]:
    try:
        written = path.read_text("utf-8")
        document = tomllib.loads(written)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {error}")
        return {}
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: {error}")
        return {}
    given = {}
    for key, value in document.items():
        origin = f"{path}:{_line_of(key, written)}"
        if key in BY_NAME:
            given[key] = Given(value, origin)
        else:
            problems.append(f"{origin}: {key} is not a setting; {_suggestion(key)}")
    return given


def _line_of(key: str, written: str) -> int:
    """Where a key of the first level stands; tomllib does not tell."""
    pattern = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    lines = enumerate(written.splitlines(), 1)
    return next((number for number, line in lines if pattern.match(line)), 1)


def _suggestion(key: str) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), BY_NAME, n=1)
    return f"did you mean {near[0]}?" if near else "`phalanx config` lists them"


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Given]:
    """Variables of ours. Others may begin with our prefix too: those of tasks and of clients."""
    known = {option.variable: option for option in OPTIONS}
    given = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name == FILE_VARIABLE:
            continue
        if name in known:
            given[known[name].name] = Given(environ[name], name)
            continue
        near = difflib.get_close_matches(
            name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in known], 1, _LOOKS_LIKE
        )
        if near:
            problems.append(f"{name}: is not a setting; did you mean {PREFIX}{near[0]}?")
    return given


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where a server keeps its file if nobody says where: the system's place for root, else the
    user's."""
    if environ.get("STATE_DIRECTORY"):  # systemd
        return Path(environ["STATE_DIRECTORY"].partition(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/phalanx")
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "phalanx"
