"""Query parameters that a route does not have are refused, so that a typing error has an effect.

Routes of the plain protocol ignore them: their clients are not ours, and may send other ones.
"""

from difflib import get_close_matches

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.routes import HTTPRoute

from phalanx.api.auth import ALLOWED
from phalanx.api.errors import wrong
from phalanx.core.errors import Invalid
from phalanx.core.spec.fields import shown

#: The key of the application's state, and of a route's option if it ignores unknown parameters.
_NAMES = "query_names"
IGNORES_UNKNOWN = "ignores_unknown_parameters"


def note_query_names(app: Litestar) -> None:
    """Note the query parameters of all routes, once for the application."""
    app.state[_NAMES] = {
        handler.fn: frozenset(each.field_alias for each in model.expected_query_params)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler, model in route.route_handler_map.values()
    }


def check_query(connection: ASGIConnection, handler: BaseRouteHandler) -> None:  # type: ignore[type-arg]
    """Raise Invalid if a request has a query parameter that its route does not have."""
    allowed = handler.opt.get(ALLOWED)
    is_strict = allowed and "worker" not in allowed and not handler.opt.get(IGNORES_UNKNOWN)
    if not connection.scope["query_string"] or not is_strict:
        return
    known = connection.app.state[_NAMES].get(handler.fn)
    if known is None:
        return  # not a route of ours, such as the API's description
    for name in connection.query_params:
        if name not in known:
            raise _unknown(name, known)


def _unknown(name: str, known: frozenset[str]) -> Invalid:
    path = name if name.isidentifier() and len(name) <= 60 else shown(name)
    if not known:
        return wrong(path, "is not a parameter of this request, which has none; leave it out")
    nearest = get_close_matches(name, known, 1)
    cure = f"did you mean {nearest[0]}?" if nearest else f"use one of: {', '.join(sorted(known))}"
    return wrong(path, f"is not a query parameter of this request; {cure}")
