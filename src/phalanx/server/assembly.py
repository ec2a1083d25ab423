"""The parts of one server, put together from its configuration."""

import os
import socket
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from litestar.types import ASGIApp

from phalanx.api.app import create_app
from phalanx.api.services import Info, Services
from phalanx.engine.agent_sync import AgentSync
from phalanx.engine.cron_lookups import CronLookups
from phalanx.engine.engine import Engine
from phalanx.engine.event_buffer import EventBuffer
from phalanx.engine.host import HostEnvironment
from phalanx.engine.planner_loop import PlannerThread
from phalanx.engine.telemetry import TelemetryFanout
from phalanx.host.clock import wall_clock
from phalanx.identity.token_registry import TokenRegistry
from phalanx.policy.authorizer import Authorizer
from phalanx.policy.cron_admission import CronAdmission
from phalanx.registry.image_pins import ImagePins
from phalanx.server.cluster_certificates import ClusterCertificates
from phalanx.server.config import Config
from phalanx.server.http_server import HttpServer
from phalanx.server.job_inputs import JobInputs
from phalanx.server.listening import Listening, is_open
from phalanx.server.log_output import Logger
from phalanx.server.logs import EventLogger
from phalanx.server.metrics.metrics import Metrics
from phalanx.server.options import ImagePinning
from phalanx.server.same_origin import SameOrigin
from phalanx.server.secret_parts import SecretParts
from phalanx.server.shutdown import Shutdown
from phalanx.store.protocol import Store


class ServerParts(NamedTuple):
    host: HostEnvironment
    engine: Engine
    event_logger: EventLogger
    requests: Shutdown
    services: Services
    http: HttpServer


def assemble(  # noqa: PLR0913, PLR0917
    config: Config,
    store: Store,
    tokens: TokenRegistry,
    secrets: SecretParts,
    listening: Listening,
    log: Logger,
) -> ServerParts:
    name: str = config["name"] or f"{socket.gethostname()}-{os.getpid()}"
    event_logger, metrics = EventLogger(log), Metrics()
    authorizer = Authorizer(secrets.objects, config["namespace_labels"])
    host = HostEnvironment(
        name,
        listening.advertised,
        wall_clock,
        lambda: uuid4().hex,
        CronLookups(verdict=CronAdmission(tokens, authorizer).verdict),
    )
    engine = Engine(
        store,
        host,
        config.engine(),
        planner=PlannerThread(metrics.plan_and_count),
        observers=[event_logger.observe, metrics.observe],
    )
    engine.telemetry = TelemetryFanout(event_logger, metrics.engine)
    inputs = JobInputs(secrets.resolver, _pins(config), authorizer)
    services = _services(config, engine, store, tokens, metrics, inputs)
    services.submit_warnings.warns_unpinned = config["image_pinning"] == ImagePinning.WARN
    services.objects, services.authorizer = secrets.objects, authorizer
    if isinstance(listening.certificate, ClusterCertificates):
        services.certificates = listening.certificate
    requests = Shutdown(_application(config, services, tokens, listening))
    tls = None if listening.certificate is None else listening.certificate.context
    http = HttpServer(requests, tls)
    return ServerParts(host, engine, event_logger, requests, services, http)


def _pins(config: Config) -> ImagePins | None:
    mode = config["image_pinning"]
    if mode == ImagePinning.OFF:
        return None
    return ImagePins(is_required=mode == ImagePinning.REFUSE)


def _services(  # noqa: PLR0913, PLR0917
    config: Config,
    engine: Engine,
    store: Store,
    tokens: TokenRegistry,
    metrics: Metrics,
    inputs: JobInputs,
) -> Services:
    return Services(
        engine=engine,
        agent_sync=AgentSync(engine, store, inputs),
        inputs=inputs,
        secrets=inputs.secrets.stored,
        store=store,
        event_buffer=EventBuffer(engine.settings.event_buffer_size),
        auth=tokens,
        tokens=tokens,
        metrics=lambda: (metrics.text(), metrics.content_type),
        info=Info(
            body_limit_bytes=config["body_limit"],
            output_limit_bytes=config["output_limit"],
            priority_classes=config["priority_classes"],
            run_as_users=config["run_as_users"],
            namespace_labels=config["namespace_labels"],
            image_map=config["image_map"],
            waiting_time=config["gang_waiting_time"],
            renew_credentials_s=config["renew_credentials"],
            has_dashboard=config["dashboard"],
        ),
    )


def _application(
    config: Config, services: Services, tokens: TokenRegistry, listening: Listening
) -> ASGIApp:
    app: ASGIApp = create_app(services)
    if is_open(config):
        return SameOrigin(app, tokens, urlsplit(listening.advertised).hostname or "")
    return app
