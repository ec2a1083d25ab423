"""What a test needs of the machine. In CI it must be there: a test that is left out fails."""

import os
import shutil
from typing import NoReturn

import pytest


def leave_out(reason: str) -> NoReturn:
    """Skip the test; where CI is set, fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"the test cannot run on this machine: {reason}")


def require_programs(*names: str) -> None:
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        leave_out(f"not installed: {', '.join(missing)}")


def require_root(reason: str) -> None:
    if os.geteuid() != 0:
        leave_out(reason)
