"""What a job or an operator asks for: the requests that policies decide.

A request has only values that decide about it, and not the name of a job, so that the decisions
about equal jobs are the same and can be kept.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from phalanx.core.model import Queue
from phalanx.core.node import GPU
from phalanx.core.queues import admits_namespace
from phalanx.core.spec.job import JobSpec
from phalanx.core.warnings import undeclared
from phalanx.identity.principal import Principal
from phalanx.registry.image_reference import ImageReference

_MILLI = 1000


class Entity(NamedTuple):
    """An entity of Cedar, with its attributes."""

    type: str
    id: str
    attributes: tuple[tuple[str, object], ...] = ()

    @property
    def uid(self) -> dict[str, str]:
        return {"type": self.type, "id": self.id}


class AccessRequest(NamedTuple):
    principal: Principal
    action: str
    resource: Entity
    what: str  #: the resource in words
    context: tuple[tuple[str, object], ...] = ()


def _job(spec: JobSpec, owner: str) -> Entity:
    of_one = sum(role.resources.get(GPU, 0) * role.replicas for role in spec.roles)
    gpus = of_one * spec.elements
    attributes: dict[str, object] = {
        "namespace": Entity("Namespace", spec.namespace),
        "namespace_name": spec.namespace,
        "queue": spec.queue,
        "priority": spec.priority,
        "gpus": -(-gpus // _MILLI),
        "tasks": spec.size * spec.elements,
        "owner": owner,
    }
    return Entity("Job", spec.namespace, tuple(attributes.items()))


def requests_of_job(
    principal: Principal, spec: JobSpec, queues: Mapping[str, Queue]
) -> Iterator[AccessRequest]:
    """Everything that the submission of a job asks for."""
    job = _job(spec, principal.name)
    of_job = (("job", job),)
    own = (("in_own_namespace", principal.may_see(spec.namespace)),)
    yield AccessRequest(principal, "SubmitJob", job, f"namespace {spec.namespace}", own)
    if spec.schedule is not None:
        yield request_on_job(principal, "ManageCron", spec, principal.name)
    queue = Entity("Queue", spec.queue, (("name", spec.queue),))
    admitted = admits_namespace(queues, spec.queue, spec.namespace)
    yield AccessRequest(
        principal, "UseQueue", queue, f"queue {spec.queue}", (*of_job, ("admitted", admitted))
    )
    for image in dict.fromkeys(role.image for role in spec.roles if role.image is not None):
        yield AccessRequest(principal, "DeployImage", _image(image), f"image {image}", of_job)
    for name in _secrets(spec):
        what = f"secret {spec.namespace}/{name}"
        secret = _secret(spec.namespace, name)
        yield AccessRequest(principal, "AccessSecret", secret, what, of_job)
    for url, is_declared in _endpoints(spec):
        what = f"endpoint {url}" + ("" if is_declared else " (not declared by the job)")
        endpoint = _endpoint(url, is_declared=is_declared)
        yield AccessRequest(principal, "AccessExternalEndpoint", endpoint, what, of_job)
    settings = security_settings(spec)
    if settings:
        context = (("settings", settings),)
        what = f"the security settings {', '.join(settings)}"
        yield AccessRequest(principal, "OverrideSecurity", job, what, context)


def _secret(namespace: str, name: str) -> Entity:
    attributes = (("namespace", namespace), ("name", name))
    return Entity("Secret", f"{namespace}/{name}", attributes)


def _secrets(spec: JobSpec) -> Iterator[str]:
    """The names of the secrets whose values the job can learn, or send to a registry."""
    names: dict[str, None] = {}
    for role in spec.roles:
        names |= dict.fromkeys((*(key.name for key in role.secrets), *role.pull_secrets))
    yield from names


def request_on_job(principal: Principal, action: str, spec: JobSpec, owner: str) -> AccessRequest:
    """`action` is one on a job or a cron that exists."""
    own = (("in_own_namespace", principal.may_see(spec.namespace)),)
    what = f"a {'cron' if action == 'ManageCron' else 'job'} of namespace {spec.namespace}"
    return AccessRequest(principal, action, _job(spec, owner), what, own)


def request_on_secret(principal: Principal, namespace: str, name: str) -> AccessRequest:
    own = (("in_own_namespace", principal.may_see(namespace)),)
    what = f"secret {namespace}/{name}"
    return AccessRequest(principal, "ManageSecret", _secret(namespace, name), what, own)


def request_to_manage(principal: Principal, kind: str, name: str) -> AccessRequest:
    """`kind` is `queue` or `worker`."""
    entity = Entity(kind.capitalize(), name, (("name", name),))
    return AccessRequest(principal, f"Manage{kind.capitalize()}", entity, f"{kind} {name}")


def security_settings(spec: JobSpec) -> tuple[str, ...]:
    """The settings of a job that change which rights its tasks have."""
    settings = [] if spec.run_as_user is None else [f"run_as_user={spec.run_as_user}"]
    for role in spec.roles:
        security = role.security
        if security is None:
            continue
        if security.run_as_user is not None:
            settings.append(f"run_as_user={security.run_as_user}")
        if security.apparmor is not None:
            settings.append(f"apparmor={security.apparmor}")
        settings += [f"capability={name}" for name in security.add_capabilities]
        settings += ["privileged"] if security.privileged else []
    return tuple(dict.fromkeys(settings))


def _image(reference: str) -> Entity:
    image = ImageReference.parse(reference)
    attributes: dict[str, Any] = {
        "reference": reference,
        "registry": image.registry,
        "repository": image.repository,
        "tag": image.tag,
        "digest": image.digest,
    }
    given = {name: value for name, value in attributes.items() if value is not None}
    return Entity("Image", reference, tuple(given.items()))


def _endpoints(spec: JobSpec) -> Iterator[tuple[str, bool]]:
    """The endpoints of a job, and whether it declares them."""
    for url in dict.fromkeys(spec.external_services.values()):
        yield url, True
    for url in undeclared(spec):
        yield url, False


def _endpoint(url: str, *, is_declared: bool) -> Entity:
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    attributes = (("url", url), ("host", host), ("declared", is_declared))
    return Entity("Endpoint", url, attributes)
