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

# A control plane of Kubernetes starts with a quarter less CPU time if it collects garbage rarely.
os.environ.setdefault("GOGC", "400")


#: Files whose tests share nothing, and take too long together for one process.
SPREAD = frozenset({"tests/simulation/test_broken_rules.py", "tests/simulation/test_seeds.py"})


#: Folders whose tests wait for processes most of the time. The other tests compute.
WAITING = (
    "tests/acceptance/",
    "tests/dashboard/",
    "tests/integration/agent/",
    "tests/integration/server/",
    "tests/kubernetes/",
)


class FilesAndSeeds(LoadFileScheduling):  # type: ignore[misc]
    """Gives each test process whole files, so that their tests share servers, but spreads some."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def _unit(nodeid: str) -> str:
    """The tests with the same unit run in the same process."""
    file = nodeid.partition("::")[0]
    return nodeid if file in SPREAD else file


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a run with several processes, let some compute while others wait, from begin to end."""
    if not hasattr(config, "workerinput"):
        return
    units = list(dict.fromkeys(_unit(item.nodeid) for item in items))
    waiting = [unit for unit in units if unit.startswith(WAITING)]
    computing = [unit for unit in units if not unit.startswith(WAITING)]
    turns = {unit: place / len(waiting) for place, unit in enumerate(waiting)}
    # A quarter of what computes is left for the end. These files are short, so that all processes
    # end at nearly the same time.
    turns |= {unit: 4 / 3 * place / len(computing) for place, unit in enumerate(computing)}
    items.sort(key=lambda item: turns[_unit(item.nodeid)])


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
