"""What the routes work with. Whoever serves them puts it together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.connection import ASGIConnection

from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.forecast import Forecasts
from phalanx.engine.output.outputs import Outputs
from phalanx.engine.plain.claims import PlainClaims
from phalanx.engine.plain.reports import PlainReports
from phalanx.engine.submissions import Submissions
from phalanx.engine.submit_warnings import SubmitWarnings
from phalanx.store.protocol import Store

if TYPE_CHECKING:
    from phalanx.api.auth import Authenticator

#: The body of /metrics and its content type.
Metrics = Callable[[], tuple[bytes, str]]


class Info(msgspec.Struct, frozen=True):
    version: str = "0.1.0"
    body_limit_bytes: int = 1024 * 1024
    checkpoint_limit_bytes: int = 1024 * 1024
    priority_classes: dict[str, int] = {}
    output_limit_bytes: int = 1024 * 1024  #: of each attempt, the last of it
    keepalive_s: float = 15.0  #: a quiet stream says this often that it lives
    linger_s: float = 1.0  #: how long output of a job that has ended is waited for


class Services:
    """The engine must not have begun to run: what is made here wants to see every turn."""

    def __init__(  # noqa: PLR0913
        self,
        engine: Engine,
        agent_sync: AgentSync,
        store: Store,
        event_buffer: EventBuffer,
        *,
        auth: "Authenticator | None" = None,
        metrics: Metrics | None = None,
        info: Info | None = None,
    ) -> None:
        self.engine = engine
        self.agent_sync = agent_sync
        self.store = store
        self.event_buffer = event_buffer
        self.auth = auth
        self.metrics = metrics
        self.info = info or Info()
        self.advice = SubmitWarnings(self.info.priority_classes)
        self.submissions = Submissions(engine, store, advice=self.advice)
        self.claims = PlainClaims(engine, store)
        self.forecasts = Forecasts(engine)
        self.reports = PlainReports(engine, store)
        self.outputs = Outputs(engine, store, self.info.output_limit_bytes)
        watching = (agent_sync, event_buffer, self.claims, self.outputs, self.advice)
        for observer in (each.observe for each in watching):
            if observer not in engine.observers:
                engine.observers.append(observer)


def services_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Services:
    found: Services = connection.app.state["services"]
    return found
