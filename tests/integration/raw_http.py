"""Requests byte by byte, as no client library would send them."""

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.integration.server.waiting import PATIENCE_S, within


class RawReply(NamedTuple):
    status: int
    body: Any  #: parsed if it is JSON

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


class RawConnection:
    """One connection to a server; what it sends is up to the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, url: str, data: bytes = b"") -> "RawConnection":
        """Connect; the data, at most 4 KiB, have arrived before the server sees the connection."""
        place = urlsplit(url)
        connected = socket.create_connection((place.hostname or "", place.port or 0))
        connected.sendall(data)
        return cls(*await asyncio.open_connection(sock=connected))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self) -> RawReply:
        """The next response."""
        return await within(PATIENCE_S, self._reply())

    async def _reply(self) -> RawReply:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status = int(head.split(" ", 2)[1])
        if status == 100:
            return await self._reply()
        lengths = [
            int(line.partition(":")[2])
            for line in head.splitlines()
            if line.lower().startswith("content-length:")
        ]
        body = await self._reader.readexactly(lengths[0]) if lengths else b""
        try:
            return RawReply(status, json.loads(body))
        except ValueError:
            return RawReply(status, body)

    async def closed(self) -> bool:
        """Wait until the server closes the connection; whether it sent nothing more."""
        try:
            return await within(PATIENCE_S, self._reader.read()) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def ask(url: str, head: str, body: bytes = b"") -> RawReply:
    """Send one request, written with newlines, and close."""
    connection = await RawConnection.to(url)
    lines = "\r\n".join(head.strip().splitlines())
    try:
        await connection.send(lines.encode("latin-1") + b"\r\n\r\n" + body)
        return await connection.reply()
    finally:
        await connection.close()
