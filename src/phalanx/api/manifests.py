"""The jobs and queues in a body, from documents in any dialect."""

import asyncio
from functools import cache
from typing import Annotated, Any
from zoneinfo import available_timezones

from litestar import Request
from litestar.params import QueryParameter

from phalanx.api import request_body
from phalanx.api.services import Services
from phalanx.core.time_units import SECOND
from phalanx.manifest.bundle import Bundle, bundle
from phalanx.manifest.read_options import ReadOptions

#: More documents than this are parsed in a thread, so that the event loop is not blocked.
_AT_ONCE = 20

IgnoreImage = Annotated[
    bool, QueryParameter(description="Run commands without their container images.")
]
IgnoreUnsupported = Annotated[
    bool, QueryParameter(description="Drop unsupported fields, with a warning for each.")
]


@cache
def _timezones() -> frozenset[str] | None:
    """The names of time zones; None, which accepts any, on a host without that database."""
    return frozenset(available_timezones()) or None


def read_options(
    services: Services,
    *,
    ignore_image: bool = False,
    ignore_unsupported: bool = False,
    whole_gangs: bool = False,
) -> ReadOptions:
    return ReadOptions(
        priority_classes=services.info.priority_classes,
        lost_after=round(services.engine.settings.lost_after_s * SECOND),
        timezones=_timezones(),
        ignore_image=ignore_image,
        ignore_unsupported=ignore_unsupported,
        whole_gangs=whole_gangs,
    )


async def read(
    request: Request[Any, Any, Any], settings: ReadOptions
) -> tuple[list[object], Bundle]:
    """The documents in the body, and their jobs and queues. Raises Invalid with every problem."""
    documents = await request_body.read(request)
    if len(documents) > _AT_ONCE:
        return documents, await asyncio.to_thread(bundle, documents, settings)
    return documents, bundle(documents, settings)
