"""Wait for conditions, with a deadline and without sleeping."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: Longer than anything takes on a busy machine.
PATIENCE_S = 60


async def within(seconds: float, work: Awaitable[T], story: Callable[[], str] | None = None) -> T:
    """The result of the work, or a failure with the story."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        told = story() if story is not None else ""
        raise AssertionError(f"not within {seconds} s; {told}") from None


async def eventually(
    question: Callable[[], Awaitable[bool]], seconds: float, story: Callable[[], str] | None = None
) -> None:
    """Return when the answer is yes; ask first every 50 ms, later every 200 ms."""

    async def ask() -> None:
        pause_s = 0.05
        while not await question():
            await pass_time(pause_s)
            pause_s = min(1.5 * pause_s, 0.2)

    await within(seconds, ask(), story)


async def pass_time(seconds: float) -> None:
    """Let time pass, for outages of a given length."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()
