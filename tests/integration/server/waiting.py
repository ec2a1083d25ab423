"""Waiting for something to become true, with a deadline and without sleeping."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T], story: Callable[[], str] | None = None) -> T:
    """What the work gives, or a failure that tells how it stood."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        told = story() if story is not None else ""
        raise AssertionError(f"not within {seconds} s; {told}") from None


async def eventually(
    question: Callable[[], Awaitable[bool]], seconds: float, story: Callable[[], str] | None = None
) -> None:
    """Ask again and again, a moment apart, until it is so."""

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        while not await question():
            moment = asyncio.Event()
            loop.call_later(0.05, moment.set)
            await moment.wait()

    await within(seconds, ask(), story)


async def pass_time(seconds: float) -> None:
    """For the one thing that is made of time: an outage of that length."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()
