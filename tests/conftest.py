"""Settings for the whole suite: a property is judged by its result, never by its duration."""

import gc
import os
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

settings.register_profile(
    "busy-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy-machine")

# The tests start hundreds of processes. Each would compile the package again if none may store it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


#: Files whose tests share nothing, and take too long together for one process.
SPREAD = frozenset({"tests/simulation/test_broken_rules.py", "tests/simulation/test_seeds.py"})


class FilesAndSeeds(LoadFileScheduling):  # type: ignore[misc]
    """Gives each test process whole files, so that their tests share servers, but spreads some."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return nodeid if file in SPREAD else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndSeeds | None:
    return FilesAndSeeds(config, log) if config.getoption("dist") == "loadfile" else None


# The collected tests and their modules are never garbage. A collection that looks at them takes
# longer than most tests, and simulations cause many.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as in a server
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-kubernetes",
        action="store_true",
        help="leave out the tests that need a Kubernetes control plane",
    )
