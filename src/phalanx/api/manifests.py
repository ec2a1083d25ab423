"""The jobs and queues in a body, from documents in any dialect."""

from functools import cache
from typing import Annotated, Any
from zoneinfo import available_timezones

import msgspec
from litestar import Request
from litestar.params import HeaderParameter, QueryParameter
from msgspec.structs import replace

from phalanx.api import request_body
from phalanx.api.auth import principal_of
from phalanx.api.errors import wrong
from phalanx.api.services import Services, services_of
from phalanx.core.errors import Invalid
from phalanx.core.time_units import SECOND
from phalanx.manifest.bundle import Bundle
from phalanx.manifest.read_options import ReadOptions

IgnoreImage = Annotated[
    bool, QueryParameter(description="Run commands without their container images.")
]
IgnoreUnsupported = Annotated[
    bool, QueryParameter(description="Drop unsupported fields, with a warning for each.")
]
#: The header with fields of jobs that replace those of the file.
OVERRIDE_HEADER = "Phalanx-Override"
Override = Annotated[
    str | None,
    HeaderParameter(
        name=OVERRIDE_HEADER,
        required=False,
        description="Fields of jobs and roles that replace those of the file, as a JSON object.",
    ),
]
DefaultNamespace = Annotated[
    str | None,
    QueryParameter(required=False, description="The namespace of jobs that name none."),
]


@cache
def _timezones() -> frozenset[str] | None:
    """The names of time zones; None, which accepts any, on a host without that database."""
    return frozenset(available_timezones()) or None


def read_options(  # noqa: PLR0913
    services: Services,
    *,
    ignore_image: bool = False,
    ignore_unsupported: bool = False,
    whole_gangs: bool = False,
    override: str | None = None,
    namespace: str | None = None,
) -> ReadOptions:
    """Raises Invalid if the overrides are not a JSON object."""
    return ReadOptions(
        overrides={} if override is None else _overrides(override),
        namespace=namespace,
        priority_classes=services.info.priority_classes,
        lost_after=round(services.engine.settings.lost_after_s * SECOND),
        timezones=_timezones(),
        run_as_users=services.info.run_as_users,
        image_map=services.info.image_map,
        waiting_time=services.info.waiting_time,
        ignore_image=ignore_image,
        ignore_unsupported=ignore_unsupported,
        whole_gangs=whole_gangs,
    )


def _overrides(header: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(header, type=dict[str, Any])
    except msgspec.DecodeError:
        raise wrong(OVERRIDE_HEADER, 'is not a JSON object, like {"priority": 5}') from None


async def read(
    request: Request[Any, Any, Any], settings: ReadOptions, what: str = "a job"
) -> Bundle:
    """The jobs and queues in the body. A job that names no namespace has the caller's, if that has
    access to one only. Raises Invalid with every problem."""
    data = await request_body.manifest(request, what)
    services, caller = services_of(request), principal_of(request)
    settings = replace(settings, namespace=settings.namespace or caller.only_namespace)
    return await services.reader.file(data, settings, caller.name)


async def read_batch(
    request: Request[Any, Any, Any], settings: ReadOptions
) -> list[Bundle | Invalid]:
    """Of each document in the body: its job, or why it is refused. Raises Invalid."""
    data = await request_body.manifest(request, "a list of jobs")
    services, caller = services_of(request), principal_of(request)
    settings = replace(settings, namespace=settings.namespace or caller.only_namespace)
    return await services.reader.batch(data, settings, caller.name)
