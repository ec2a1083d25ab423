"""Responses leave a server in one piece."""

import asyncio

from phalanx.server.http_protocol import _CoalescingTransport


class Wire(asyncio.Transport):
    """A connection that records what was sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 7)})
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Nothing arrives here anyway."""


async def test_writes_within_one_iteration_are_sent_together() -> None:
    wire = Wire()
    transport = _CoalescingTransport(wire, asyncio.get_running_loop())
    transport.write(b"head ")
    transport.write(b"body")
    assert wire.sent == []
    await asyncio.sleep(0)
    transport.write(b"more")
    await asyncio.sleep(0)
    assert wire.sent == [b"head body", b"more"]


async def test_closing_a_connection_sends_what_was_written_first() -> None:
    wire = Wire()
    transport = _CoalescingTransport(wire, asyncio.get_running_loop())
    transport.write(b"goodbye")
    transport.close()
    await asyncio.sleep(0)
    assert wire.sent == [b"goodbye"]
    assert wire.is_closed


async def test_nothing_is_sent_on_a_broken_connection() -> None:
    wire = Wire()
    transport = _CoalescingTransport(wire, asyncio.get_running_loop())
    transport.write(b"too late")
    wire.close()
    await asyncio.sleep(0)
    assert wire.sent == []


async def test_everything_else_is_passed_to_the_connection() -> None:
    transport = _CoalescingTransport(Wire(), asyncio.get_running_loop())
    assert transport.get_extra_info("peername") == ("127.0.0.1", 7)
