"""Settings for the whole suite: a property is judged by its result, never by its duration."""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy-machine")

# The tests start hundreds of processes. Each would compile the package again if none may store it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-kubernetes",
        action="store_true",
        help="leave out the tests that need a Kubernetes control plane",
    )
