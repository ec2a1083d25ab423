"""Decisions about access requests by the policies of the cluster.

Without policies every request is allowed here, and the built-in rules hold alone. With policies a
request needs one that permits it and none that forbids it. Policies only restrict: the role and the
namespaces of a token hold in any case. A policy that cannot be evaluated denies.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from phalanx.core.errors import Invalid
from phalanx.core.model import Queue
from phalanx.core.spec.job import JobSpec
from phalanx.engine.object_registry import ObjectRegistry
from phalanx.identity.principal import Principal
from phalanx.policy.access_requests import AccessRequest, Entity, requests_of_job
from phalanx.policy.policy_sets import CedarMissing, ParsedPolicies, cedar, parse, split_trust
from phalanx.policy.trust import PolicyDenied, TrustPolicies

KIND = "policy"
#: Decisions that are kept.
_CACHE_SIZE = 10_000

Labels = Mapping[str, Mapping[str, str]]


class Decision(NamedTuple):
    is_allowed: bool
    policies: tuple[str, ...] = ()  #: the names of those that decided
    why: str = ""  #: the refusal, in words


class Authorizer:
    def __init__(self, registry: ObjectRegistry, labels: Labels | None = None) -> None:
        """`labels` are those of namespaces."""
        self._registry = registry
        self._labels = labels or {}
        self._parsed: ParsedPolicies | None = None
        self.trust = TrustPolicies()
        self._broken = ""  #: why the stored policies cannot be used
        self._decisions: dict[AccessRequest, Decision] = {}
        registry.observers.append(self._load)
        self._load()

    @property
    def has_policies(self) -> bool:
        return self._parsed is not None or bool(self._broken)

    def _load(self) -> None:
        self._decisions.clear()
        self._parsed, self._broken, self.trust = None, "", TrustPolicies()
        files = {each.name: each.body for each in self._registry.of_kind(KIND)}
        if not files:
            return
        try:
            trust, rest = split_trust(files)
            self.trust = TrustPolicies(trust)
            self._parsed = parse(rest) if rest else None
        except (CedarMissing, Invalid) as error:
            self._broken = f"the policies of the cluster cannot be used: {error}"

    def decide(self, request: AccessRequest) -> Decision:
        if self._broken:
            return Decision(is_allowed=False, why=self._broken)
        if self._parsed is None:
            return Decision(is_allowed=True)
        decision = self._decisions.get(request)
        if decision is None:
            if len(self._decisions) >= _CACHE_SIZE:
                self._decisions.clear()
            decision = evaluate(self._parsed, request, self._labels)
            self._decisions[request] = decision
        return decision

    def check_job(
        self, principal: Principal, spec: JobSpec, queues: Mapping[str, Queue]
    ) -> tuple[str, ...]:
        """The names of the policies that permit a job. Raises PolicyDenied."""
        self.trust.check(spec)
        return self.check(requests_of_job(principal, spec, queues))

    def check(self, requests: Iterable[AccessRequest]) -> tuple[str, ...]:
        """The names of the policies that permit the requests. Raises PolicyDenied."""
        if not self.has_policies:
            return ()
        policies: dict[str, None] = {}
        for request in requests:
            decision = self.decide(request)
            if not decision.is_allowed:
                raise PolicyDenied(decision.why, decision.policies)
            policies |= dict.fromkeys(decision.policies)
        return tuple(policies)


def evaluate(parsed: ParsedPolicies, request: AccessRequest, labels: Labels) -> Decision:
    """The answer of Cedar, in words."""
    entities: dict[tuple[str, str], dict[str, Any]] = {}
    principal = _principal(request.principal)
    _add(entities, principal, labels)
    entities[principal.type, principal.id]["parents"] = [
        {"type": "Role", "id": request.principal.role}
    ]
    _add(entities, request.resource, labels)
    context = {}
    for name, value in request.context:
        if isinstance(value, Entity):
            _add(entities, value, labels)
        context[name] = _written(value)
    result = cedar().is_authorized(
        {
            "principal": principal.uid,
            "action": {"type": "Action", "id": request.action},
            "resource": request.resource.uid,
            "context": context,
        },
        parsed.policies,
        list(entities.values()),
        parsed.schema,
    )
    policies = tuple(sorted(result.diagnostics.reasons))
    errors = result.diagnostics.errors
    asked = f"{request.action} on {request.what} for {request.principal.name or 'this caller'}"
    if errors:
        why = f"{asked} cannot be decided: {errors[0]}"
        return Decision(is_allowed=False, policies=policies, why=why)
    if result.allowed:
        return Decision(is_allowed=True, policies=policies)
    if policies:
        named = " and ".join(f"policy {name}" for name in policies)
        return Decision(is_allowed=False, policies=policies, why=f"{named} forbids {asked}")
    return Decision(is_allowed=False, why=f"no policy permits {asked}")


def _principal(principal: Principal) -> Entity:
    attributes = (
        ("name", principal.name),
        ("role", principal.role),
        ("namespaces", principal.namespaces),
    )
    return Entity("User", principal.name, attributes)


def _add(entities: dict[tuple[str, str], dict[str, Any]], entity: Entity, labels: Labels) -> None:
    attributes = {name: _written(value) for name, value in entity.attributes}
    document = {"uid": entity.uid, "attrs": attributes, "parents": []}
    if entity.type == "Namespace":
        document["tags"] = dict(labels.get(entity.id, {}))
    entities[entity.type, entity.id] = document
    for _, value in entity.attributes:
        if isinstance(value, Entity):
            _add(entities, value, labels)


def _written(value: object) -> object:
    if isinstance(value, Entity):
        return {"__entity": value.uid}
    return list(value) if isinstance(value, tuple) else value
