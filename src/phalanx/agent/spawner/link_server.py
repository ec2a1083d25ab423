"""The spawner's end of the socket: one link at a time, the latest one.

Changed statuses are collected and sent together.
"""

import socket
from collections.abc import Callable

import msgspec

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
from phalanx.agent.peer import may_be_link
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
        # One buffer for all messages: the system maps new memory for each object of this size.
        self._received = memoryview(bytearray(_READ_BYTES))
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
            size = self._connection.recv_into(self._received)
        except BlockingIOError:
            return []
        except OSError:
            return None
        try:
            bodies = self._decoder.feed(self._received[:size])
            return [decode_link_message(body) for body in bodies] if size else None
        except (msgspec.MsgspecError, ValueError):
            return None

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
        self._state_dir = state_dir
        self._poller = poller
        self._snapshot = snapshot
        self._handle = handle
        self._link_count = 0
        self._link: LinkConnection | None = None
        self._changed: dict[AttemptKey, AttemptStatus] = {}
        self._listening = self._listen()

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._state_dir.socket.unlink(missing_ok=True)
        with short_path(self._state_dir.socket) as name:
            listening.bind(name)
        self._state_dir.socket.chmod(0o600)
        listening.listen(8)
        self._poller.watch(listening.fileno(), self._accept)
        return listening

    def listen_again_if_removed(self) -> None:
        """Create the socket again if a task has removed it. Raises OSError."""
        if not self._state_dir.socket.is_socket():
            self._state_dir.discard_unusable()
            self._poller.unwatch(self._listening.fileno())
            self._listening.close()
            self._listening = self._listen()

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
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return  # the peer has gone again, or there are too many open files
        if not may_be_link(connection):
            connection.close()
            return
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
