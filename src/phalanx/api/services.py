"""What the routes work with: the engine, the store, and the parts of the engine that they call."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from litestar.connection import ASGIConnection

from phalanx.api.input_reader import InputReader
from phalanx.core.spec.job import JobSpec
from phalanx.core.time_units import MINUTE, Micros
from phalanx.engine.admission import CallLimit
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.forecast import Forecasts
from phalanx.engine.gang_inputs import ImagePreview
from phalanx.engine.idempotency import IdempotencyKeys
from phalanx.engine.object_registry import ObjectRegistry
from phalanx.engine.output.outputs import Outputs
from phalanx.engine.plain.claims import PlainClaims
from phalanx.engine.plain.reports import PlainReports
from phalanx.engine.queue_usage import QueueUsages
from phalanx.engine.refused_requests import RefusedRequests
from phalanx.engine.snapshots import Snapshots
from phalanx.engine.submissions import Submissions
from phalanx.engine.submit_warnings import SubmitWarnings
from phalanx.engine.usage_history import UsageHistory
from phalanx.host.clock import wall_clock
from phalanx.identity.sessions import Sessions
from phalanx.identity.token_changes import TokenChanges
from phalanx.identity.token_registry import TokenRegistry
from phalanx.policy.authorizer import Authorizer
from phalanx.secrets.stored_secrets import StoredSecrets
from phalanx.store.protocol import Store

if TYPE_CHECKING:
    from phalanx.api.auth import Authenticator
    from phalanx.api.certificates import Certificates


class PinnedImages(Protocol):
    async def pinned(self, spec: JobSpec) -> dict[str, str]:
        """By image of a job: the reference with its digest. Raises Invalid."""

    async def preview(self, spec: JobSpec) -> ImagePreview:
        """Whether the images of a job could be used now. Raises Invalid, as `pinned` does."""


#: Collects the body of /metrics and its content type.
MetricsSource = Callable[[], tuple[bytes, str]]

#: Checkpoints that are received at a time; each is in memory until it is stored.
_CHECKPOINT_UPLOADS = 8
#: Plans of changed queues that may be in progress, of all callers together and of one caller.
_QUEUE_PLANS = 16
_QUEUE_PLANS_OF_ONE = 4


class Info(msgspec.Struct, frozen=True):
    version: str = "0.1.0"
    body_limit_bytes: int = 1024 * 1024
    priority_classes: dict[str, int] = {}
    run_as_users: dict[str, tuple[str, ...]] = {}
    namespace_labels: dict[str, dict[str, str]] = {}
    image_map: dict[str, str] = {}
    waiting_time: Micros = 10 * MINUTE  #: of a Koordinator gang that sets none
    output_limit_bytes: int = 1024 * 1024  #: the output that is kept of each attempt
    renew_credentials_s: float = 86_400.0  #: how often agents renew their credentials
    check_tokens_s: float = 2.0  #: how often the tokens of held calls and streams are checked
    keepalive_s: float = 15.0  #: how often a quiet stream sends a comment
    has_dashboard: bool = True
    linger_s: float = 1.0  #: how long a reader waits for late output of an ended job


class Services:
    """Create this before the engine runs: its parts observe every turn."""

    def __init__(  # noqa: PLR0913
        self,
        engine: Engine,
        agent_sync: AgentSync,
        store: Store,
        event_buffer: EventBuffer,
        *,
        auth: "Authenticator | None" = None,
        tokens: TokenRegistry | None = None,
        certificates: "Certificates | None" = None,
        metrics: MetricsSource | None = None,
        info: Info | None = None,
        secrets: StoredSecrets | None = None,
        objects: ObjectRegistry | None = None,
        authorizer: Authorizer | None = None,
        inputs: "PinnedImages | None" = None,
    ) -> None:
        self.engine = engine
        self.agent_sync = agent_sync
        self.store = store
        self.event_buffer = event_buffer
        self.auth = auth
        registry = tokens or TokenRegistry(store, open_on_loopback=False)
        registry.on_revoked = agent_sync.end_call
        self.tokens = TokenChanges(store, registry, keep_admin=not registry.open_on_loopback)
        self.sessions = Sessions(store, registry)
        self.certificates = certificates
        self.objects = objects or ObjectRegistry(store)
        self.secrets = secrets or StoredSecrets(self.objects, None)
        self.inputs = inputs
        self.authorizer = authorizer or Authorizer(self.objects)
        self.metrics = metrics
        self.info = info or Info()
        self.checkpoint_uploads = asyncio.Semaphore(_CHECKPOINT_UPLOADS)
        self.reader = InputReader(self.info.body_limit_bytes)
        self.submit_warnings = SubmitWarnings(self.info.priority_classes)
        self.clock = wall_clock
        self.refused_requests = RefusedRequests(store, self.clock)
        self.idempotency_keys = IdempotencyKeys(store)
        self.submissions = Submissions(
            engine, store, self.idempotency_keys, warnings=self.submit_warnings
        )
        self.claims = PlainClaims(engine, store)
        self.forecasts = Forecasts(engine)
        self.queue_usages = QueueUsages(engine)
        self.snapshots = Snapshots(engine)
        self.queue_plans = CallLimit("plans of queues", _QUEUE_PLANS, _QUEUE_PLANS_OF_ONE)
        self.usage = UsageHistory(engine, store, self.snapshots)
        self.reports = PlainReports(engine, store)
        self.outputs = Outputs(engine, store, self.info.output_limit_bytes)
        parts = (
            *(agent_sync, event_buffer, self.claims, self.outputs, self.submit_warnings),
            self.usage,
        )
        for observer in (part.observe for part in parts):
            if observer not in engine.observers:
                engine.observers.append(observer)

    def close(self) -> None:
        """End the processes of this server."""
        self.reader.close()


def services_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Services:
    services: Services = connection.app.state["services"]
    return services
