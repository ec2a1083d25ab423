"""Commands that take more than they say: what several share is declared once and added to each."""

import inspect
from collections.abc import Callable


def extended(
    command: Callable[..., None], run: Callable[..., None], *more: inspect.Parameter
) -> Callable[..., None]:
    """`run` in the place of a command, whose first argument it provides: it takes what the command
    declares after that, and more."""
    own = list(inspect.signature(command).parameters.values())[1:]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *more)]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
