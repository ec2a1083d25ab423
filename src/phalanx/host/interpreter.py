"""How the interpreter of a long-running process works."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects are many, live long and have no cycles: the garbage collector rarely finds anything.
_GARBAGE_THRESHOLDS = (20_000, 20, 20)
#: How long a busy thread keeps the others from running; 5 ms by default. While the event loop is
#: busy, the thread of SQLite waits this long at each statement of a commit.
_SWITCH_S = 0.0002


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
