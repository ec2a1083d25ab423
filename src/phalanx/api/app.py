"""The application: all routes, one form of errors, and the page that describes them."""

from litestar import Litestar
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import ScalarRenderPlugin

from phalanx.api import (
    checkpoints,
    cost,
    crons,
    health,
    job_actions,
    jobs,
    middleware,
    output,
    plain_protocol,
    plan,
    queues,
    stream,
    submit,
    workers,
)
from phalanx.api.auth import guard
from phalanx.api.errors import respond
from phalanx.api.services import Services

_TOPICS = (
    submit,
    plan,
    jobs,
    job_actions,
    plain_protocol,
    checkpoints,
    output,
    workers,
    middleware,
    queues,
    crons,
    cost,
    stream,
    health,
)

#: Where the description of the routes is; `/openapi.json` below it.
OPENAPI_PATH = "/openapi"


def create_app(services: Services) -> Litestar:
    app = Litestar(
        route_handlers=[route for topic in _TOPICS for route in topic.ROUTES],
        guards=[guard],
        exception_handlers={Exception: respond},
        openapi_config=OpenAPIConfig(
            title="Phalanx",
            version=services.info.version,
            description="A gang scheduler: all of a job's processes start together, or none does.",
            path=OPENAPI_PATH,
            render_plugins=[ScalarRenderPlugin()],
            use_handler_docstrings=True,
        ),
        state=State({"services": services}),
        request_max_body_size=None,  # each route has a limit of its own
        logging_config=None,
    )
    app.asgi_handler = middleware.Middleware(app.asgi_handler, services)
    return app
