"""Settings from file, variables and flags; every problem is reported with its place."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from phalanx.core.settings import CoreSettings
from phalanx.core.time_units import HOUR, MINUTE, SECOND
from phalanx.engine.settings import EngineSettings
from phalanx.server.config import Config, ConfigError, load, state_directory
from phalanx.server.options import BY_NAME, OPTIONS
from phalanx.server.stores import place_of, shown

LEASE_IS_NO_DURATION = (
    'is "soon", not a duration; write one like 90s, 15m, 6h, 1d, 500ms or 1h30m, or a number of'
    " seconds"
)
NOWHERE = {"XDG_CONFIG_HOME": "/nonexistent"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "phalanx.toml"


def loaded(
    file: Path | None = None, /, environ: dict[str, str] | None = None, **flags: Any
) -> Config:
    return load(flags, file=str(file) if file else None, environ=NOWHERE | (environ or {}))


def problems(*args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        loaded(*args, **kwargs)
    return list(refused.value.problems)


def test_without_settings_the_defaults_apply() -> None:
    config = loaded()
    # Only a server limits what a namespace submits; simulations and benchmarks do not.
    core = replace(
        CoreSettings(),
        namespace_jobs=50_000,
        namespace_tasks=200_000,
        namespace_bytes=256 * 1024**2,
    )
    assert config.engine() == replace(EngineSettings(), core=core, submit_rate=2000)
    assert set(config.origins.values()) == {"default"}


def test_every_number_of_the_engine_and_the_core_is_a_setting() -> None:
    fields = {f"engine.{name}" for name in EngineSettings.__struct_fields__ if name != "core"}
    fields |= {f"core.{name}" for name in CoreSettings.__struct_fields__}
    fields.remove("core.fence_slack")  # follows from lost_after
    assert {option.target for option in OPTIONS if option.target} == fields


def test_the_fence_slack_grows_with_lost_after() -> None:
    assert loaded(lost_after="10m").engine().core.fence_slack == 11_000_000


def test_a_flag_wins_over_a_variable_a_variable_over_the_file_the_file_over_the_default(
    file: Path,
) -> None:
    file.write_text('lease = "1s"\nport = 1\nlost_after = 60\n')
    config = loaded(file, {"PHALANX_LEASE": "2s", "PHALANX_PORT": "2"}, lease="3s")
    assert (config["lease"], config["port"], config["lost_after"]) == (3.0, 2, 60.0)
    assert config.origins["lease"] == "--lease"
    assert config.origins["port"] == "PHALANX_PORT"
    assert config.origins["lost_after"] == f"{file}:3"
    assert config.origins["host"] == "default"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_printed_value_is_read_back_from_file_variable_and_flag(option: Any) -> None:
    value = option.default
    if value is None or not option.shown(value):
        return
    written = option.shown(value)
    assert option.read(written) == value
    given = {option.name: written}
    if option.name not in ("tls_cert", "tls_key"):
        assert loaded(environ={option.variable: written})[option.name] == value
        assert load(given, environ=NOWHERE)[option.name] == value


def test_times_reach_the_engine_in_its_own_units() -> None:
    settings = loaded(
        lost_after="1m30s", accept_timeout="45s", healthy_after="2h", ports="100-200"
    ).engine()
    assert settings.lost_after_s == 90
    assert settings.core.accept == 45 * SECOND
    assert settings.core.healthy_after == 2 * HOUR
    assert settings.core.ports == (100, 200)


def test_an_unknown_key_of_the_file_is_refused_with_its_line_and_a_suggestion(file: Path) -> None:
    file.write_text('# a file\nport = 80\nlost-after = "1m"\nfoo = 1\n[engine]\nx = 1\n')
    assert problems(file) == [
        f"{file}:3: lost-after is not a setting; did you mean lost_after?",
        f"{file}:4: foo is not a setting; `phalanx config` lists them",
        f"{file}:5: engine is not a setting; `phalanx config` lists them",
    ]


def test_a_misspelt_variable_is_refused_and_an_unrelated_one_is_ignored() -> None:
    assert problems(environ={"PHALANX_LOST_AFTR": "1m"}) == [
        "PHALANX_LOST_AFTR: is not a setting; did you mean PHALANX_LOST_AFTER?"
    ]
    task = ("JOB", "TASK", "ROLE", "ATTEMPT", "TOKEN", "SERVER", "URL", "TEST_POSTGRES")
    loaded(environ={f"PHALANX_{name}": "x" for name in task})


def test_all_problems_are_reported_at_once_each_with_its_place(file: Path) -> None:
    file.write_text('port = "many"\nlease = "soon"\n')
    found = problems(file, {"PHALANX_LOG_FORMAT": "xml"}, store="mysql:x")
    assert found == [
        '--store: store is "mysql:x"; write memory, sqlite:PATH or postgres://USER@HOST/DATABASE',
        f'{file}:1: port is "many"; write a whole number from 0 to 65535',
        'PHALANX_LOG_FORMAT: log_format is "xml"; write text or json',
        f"{file}:2: lease {LEASE_IS_NO_DURATION}",
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"lost_after": "5s"}, "lost_after (5s, --lost-after) must be longer than sync_wait (10s"),
        ({"tls_cert": "a.pem"}, "tls_cert and tls_key belong together"),
        ({"tls": "on"}, "write off or auto"),
        ({"tls": "auto", "tls_cert": "a", "tls_key": "b"}, "tls auto makes its own certificate"),
        ({"lease": "0s"}, "longer than 0"),
        ({"brake_share": "2"}, "from 0 to 1"),
        ({"ports": "9-1"}, "the first and the last port"),
        ({"body_limit": "0"}, "larger than 0"),
        ({"advertise_url": "there"}, "https://"),
        ({"loopback_open": "maybe"}, "true or false"),
        ({"name": ""}, "is empty"),
        ({"priority_classes": "high"}, "like high=1000,low=-10"),
        ({"price": "gpu"}, "like gpu=3.50,cpu=0.04"),
        ({"price": "gpu=dear"}, "like 3.50"),
        ({"price": "gpu=-1"}, "like 3.50"),
    ],
)
def test_invalid_values_are_refused(flags: dict[str, str], words: str) -> None:
    assert words in problems(**flags)[0]


def test_a_file_that_cannot_be_read_is_refused_with_the_place_and_the_cure(file: Path) -> None:
    cure = "name another file with --config or PHALANX_CONFIG"
    assert problems(file) == [f"{file}: cannot be read: No such file or directory; {cure}"]
    file.write_text("port = 80\nlease: 10s\n")
    assert problems(file) == [
        f'{file}:2: is not TOML (column 6); write each setting like lost_after = "45s"'
    ]
    file.write_bytes(b"name = \xff")
    assert problems(file) == [f"{file}: is not UTF-8 text; write the file as TOML in UTF-8"]


def test_the_file_is_read_from_its_default_places(tmp_path: Path) -> None:
    (tmp_path / "phalanx").mkdir()
    file = tmp_path / "phalanx" / "phalanx.toml"
    file.write_text("port = 7\n[priority_classes]\nhigh = 10\n[price]\ngpu = 3.50\n")
    config = load({}, environ={"XDG_CONFIG_HOME": str(tmp_path)})
    assert (config["port"], config["priority_classes"], config.file) == (7, {"high": 10}, file)
    assert config.engine().core.price == loaded(price="gpu=3.5/h")["price"] == {"gpu": 3_500_000}
    named = tmp_path / "other.toml"
    named.write_text("port = 8\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "PHALANX_CONFIG": str(named)}
    assert load({}, environ=environ)["port"] == 8


def test_the_default_store_is_in_the_state_directory() -> None:
    assert place_of(loaded()).startswith("sqlite:/")
    assert place_of(loaded(store="memory")) == "memory"
    assert state_directory({"STATE_DIRECTORY": "/var/lib/a:/b"}) == Path("/var/lib/a")


def test_a_password_is_never_printed() -> None:
    assert shown("postgres://ada:secret@db/x?y=1") == "postgres://ada:…@db/x?y=1"
    assert shown("postgres://ada@db/x") == "postgres://ada@db/x"
    assert shown("postgres://db/x?password=secret&y=1") == "postgres://db/x?password=…&y=1"
    assert shown("sqlite:/a:b@c") == "sqlite:/a:b@c"


def test_a_password_on_the_command_line_is_refused() -> None:
    for store in ("postgres://ada:secret@db/x", "postgres://ada@db/x?password=secret"):
        [problem] = problems(store=store)
        assert problem.startswith("--store: has a password, which other users can read")
        assert loaded(environ={"PHALANX_STORE": store})["store"] == store


def test_a_setting_has_a_name_a_variable_and_a_flag() -> None:
    option = BY_NAME["lost_after"]
    assert (option.variable, option.flag) == ("PHALANX_LOST_AFTER", "--lost-after")
    assert msgspec.structs.asdict(EngineSettings())["lost_after_s"] * SECOND == MINUTE / 2
