"""How the interpreter of a long-running process works."""

import gc
import sys

#: Objects are many, live long and have no cycles: the garbage collector rarely finds anything.
_GARBAGE_THRESHOLDS = (20_000, 20, 20)
#: How long a thread may keep the event loop from running; 5 ms by default.
_SWITCH_S = 0.001


def tune_interpreter() -> None:
    """Set how often the interpreter collects garbage, and how soon the event loop gets it back."""
    gc.freeze()  # imported modules stay
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)
