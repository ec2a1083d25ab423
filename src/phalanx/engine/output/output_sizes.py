"""How much output the ended attempts of tasks have written, as their workers report it. What the
store does not have of it is on its way."""

from collections import OrderedDict
from collections.abc import Mapping

#: Tasks whose sizes are remembered.
_MOST_TASKS = 20_000


class OutputSizes:
    def __init__(self) -> None:
        self._sizes: OrderedDict[str, dict[int, int]] = OrderedDict()

    def note(self, task: str, attempt: int, size_bytes: int) -> None:
        """Take a worker's report on the end of an attempt."""
        self._sizes.setdefault(task, {})[attempt] = size_bytes
        if len(self._sizes) > _MOST_TASKS:
            self._sizes.popitem(last=False)

    def of(self, task: str) -> Mapping[int, int]:
        """By attempt, as far as it was reported."""
        return self._sizes.get(task, {})
