"""The spawner's end of the socket: one link at a time, the latest one.

Changed statuses are collected and sent together.
"""

import socket
from collections.abc import Callable

from phalanx.agent.messages import (
    AttemptKey,
    AttemptsChanged,
    AttemptStatus,
    FrameDecoder,
    LinkMessage,
    SpawnerMessage,
    SpawnerSnapshot,
    decode_link_message,
    frame,
)
from phalanx.agent.spawner.poller import Poller
from phalanx.agent.state_dir import StateDir, short_path

#: A link that does not read is disconnected; it gets a snapshot when it connects again.
_UNREAD_BYTES = 4 * 1024**2
_READ_BYTES = 256 * 1024


class LinkConnection:
    """A connection that never blocks: what the link does not read yet is buffered."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._decoder = FrameDecoder()
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: SpawnerMessage) -> bool:
        """Send a message, or buffer it; False if the connection has to be closed."""
        self._unsent += frame(message)
        return self.send_buffered()

    def send_buffered(self) -> bool:
        """Send what the link has room for; False if the connection has to be closed."""
        while self._unsent:
            try:
                del self._unsent[: self._connection.send(self._unsent)]
            except BlockingIOError:
                return len(self._unsent) <= _UNREAD_BYTES
            except OSError:
                return False
        return True

    def receive(self) -> list[LinkMessage] | None:
        """The messages that have arrived; None at the end of the connection."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return [decode_link_message(body) for body in self._decoder.feed(data)] if data else None

    def close(self) -> None:
        self._connection.close()


class LinkServer:
    def __init__(
        self,
        state_dir: StateDir,
        poller: Poller,
        snapshot: Callable[[int], SpawnerSnapshot],
        handle: Callable[[LinkMessage], None],
    ) -> None:
        """Listen on the state directory's socket; `snapshot` takes the number of a new link."""
        self._poller = poller
        self._snapshot = snapshot
        self._handle = handle
        self._link_count = 0
        self._link: LinkConnection | None = None
        self._changed: dict[AttemptKey, AttemptStatus] = {}
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        state_dir.socket.unlink(missing_ok=True)
        with short_path(state_dir.socket) as name:
            self._listening.bind(name)
        self._listening.listen(8)
        poller.watch(self._listening.fileno(), self._accept)

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    @property
    def has_unsent(self) -> bool:
        return self._link is not None and self._link.has_unsent

    def publish(self, status: AttemptStatus) -> None:
        """Send the status with the next `flush`; a later status of the attempt replaces it."""
        self._changed[status.key] = status

    def flush(self) -> None:
        if self._changed:
            changed = tuple(self._changed.values())
            self._changed.clear()
            self._send(AttemptsChanged(changed))
        elif self._link is not None and not self._link.send_buffered():
            self._disconnect()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        self._disconnect()
        self._link_count += 1
        link = self._link = LinkConnection(connection)
        self._poller.watch(link.fileno(), lambda: self._receive(link))
        self._changed.clear()
        self._send(self._snapshot(self._link_count))

    def _receive(self, link: LinkConnection) -> None:
        messages = link.receive()
        if messages is None:
            self._disconnect()
        for message in messages or ():
            self._handle(message)

    def _send(self, message: SpawnerMessage) -> None:
        if self._link is not None and not self._link.send(message):
            self._disconnect()

    def _disconnect(self) -> None:
        if self._link is not None:
            self._poller.unwatch(self._link.fileno())
            self._link.close()
        self._link = None
