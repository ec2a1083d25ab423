"""The HTTP application: its routes, its error handler and its OpenAPI description."""

from copy import copy

from litestar import Litestar, MediaType
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from phalanx.api import (
    arrays,
    audit_listing,
    certificates,
    checkpoints,
    cluster_map,
    cost,
    crons,
    dashboard_files,
    health,
    job_actions,
    jobs,
    joining,
    middleware,
    output,
    overview,
    plain_protocol,
    plan,
    policies,
    queues,
    secrets,
    servers,
    session,
    shares,
    stream,
    submit,
    tokens,
    whoami,
    worker_actions,
    workers,
)
from phalanx.api.audit import respond
from phalanx.api.auth import check_caller
from phalanx.api.query_names import check_query, note_query_names
from phalanx.api.route_policies import Connection, check_policies
from phalanx.api.services import Services

_TOPICS = (
    submit,
    plan,
    jobs,
    job_actions,
    arrays,
    plain_protocol,
    checkpoints,
    output,
    workers,
    joining,
    worker_actions,
    certificates,
    middleware,
    queues,
    shares,
    crons,
    cost,
    overview,
    cluster_map,
    audit_listing,
    stream,
    secrets,
    policies,
    tokens,
    session,
    servers,
    whoami,
    health,
    dashboard_files,
)

#: The path of the API's description; `/openapi.json` is below it.
OPENAPI_PATH = "/openapi"


def create_app(services: Services) -> Litestar:
    return with_services(create_routes(services.info.version), services)


def create_routes(version: str) -> Litestar:
    """The application without services. It takes most of the time of `create_app`."""
    app = Litestar(
        route_handlers=[route for topic in _TOPICS for route in topic.ROUTES],
        guards=[guard],
        exception_handlers={Exception: respond},
        openapi_config=OpenAPIConfig(
            title="Phalanx",
            version=version,
            description="A gang scheduler: the tasks of a job start together or not at all.",
            path=OPENAPI_PATH,
            # No page: its scripts would come from another server, and could use this one.
            render_plugins=[JsonRenderPlugin(media_type=MediaType.JSON)],
            use_handler_docstrings=True,
        ),
        request_max_body_size=None,  # each route has its own limit
        logging_config=None,
    )
    note_query_names(app)
    return app


async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
    """Check the caller, the query and the policies. One function does it, because the framework
    copies the handler for each."""
    await check_caller(connection, handler)
    check_query(connection, handler)
    await check_policies(connection, handler)


def with_services(routes: Litestar, services: Services) -> Litestar:
    """A copy of the application that answers with these services. The routes are shared."""
    app = copy(routes)
    app.state = State({**routes.state.dict(), "services": services})
    app.asgi_handler = middleware.Middleware(routes.asgi_handler, services)
    return app
