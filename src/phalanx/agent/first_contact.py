"""The first contact of a worker with a server whose certificate authority is pinned."""

import time
from collections.abc import Sequence

import structlog

from phalanx.tls.pinning import Pin

_RETRY_S, _MAX_RETRY_S = 0.1, 5.0


def pinned_authorities(pin: Pin, servers: Sequence[str]) -> str:
    """The certificates that are trusted, in PEM, as soon as a server answers.

    Raises FingerprintMismatch.
    """
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    pause, last_error = _RETRY_S, ""
    while True:
        try:
            return pin.trusted(servers)
        except OSError as error:
            if str(error) != last_error:
                log.warning("cannot reach server", error=str(error))
            last_error = str(error)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_RETRY_S)
