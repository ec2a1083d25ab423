"""The first contact of a worker with a server whose certificate authority is pinned."""

import ssl
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from phalanx.tls.pinning import Pin

_RETRY_S, _MAX_RETRY_S = 0.1, 5.0


def pinned_trust(fingerprint: str, servers: Sequence[str], folder: Path) -> ssl.SSLContext:
    """A context that trusts only the pinned authority, as soon as a server answers.

    Raises FingerprintMismatch.
    """
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    pin, pause, last_error = Pin(fingerprint, folder), _RETRY_S, ""
    while True:
        try:
            return pin.context(servers)
        except OSError as error:
            if str(error) != last_error:
                log.warning("cannot reach server", error=str(error))
            last_error = str(error)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_RETRY_S)
