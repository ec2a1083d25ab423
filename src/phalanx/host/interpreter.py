"""How the interpreter of a process starts, and how that of a long-running process works."""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects are many, live long and have no cycles: the garbage collector rarely finds anything.
_GARBAGE_THRESHOLDS = (20_000, 20, 20)
#: How long a busy thread keeps the others from running; 5 ms by default. While the event loop is
#: busy, the thread of SQLite waits this long at each statement of a commit.
_SWITCH_S = 0.0002


#: Imports create many objects and hardly any garbage.
_GARBAGE_THRESHOLD_AT_START = 50_000


def start_quickly() -> None:
    """Collect garbage rarely while modules are imported."""
    gc.set_threshold(_GARBAGE_THRESHOLD_AT_START)


def import_structlog() -> None:
    """Import structlog without rich, which takes longer than the rest of structlog.

    structlog would format tracebacks with rich, and no process prints those.
    """
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # so that its import fails
        try:
            importlib.import_module("structlog")
        finally:
            del sys.modules["rich"]


def tune_interpreter() -> None:
    """Set how often the interpreter collects garbage, and how soon a thread gets it."""
    gc.freeze()  # imported modules stay
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)


@contextmanager
def loading() -> Iterator[None]:
    """Collect no garbage in the block, and never look again at the objects that it leaves: it
    creates many that stay, and the collector would go through all of them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
