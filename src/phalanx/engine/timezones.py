"""Time zones as this host knows them."""

from datetime import UTC, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


@lru_cache(maxsize=1024)
def zone(name: str) -> tzinfo | None:
    """UTC is known everywhere, also on hosts without a table of zones."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
