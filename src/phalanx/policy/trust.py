"""Trust policies: which registries images may come from, and which signatures they need."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import yaml

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec import names
from phalanx.core.spec.fields import (
    REQUIRED,
    Field,
    FieldPath,
    boolean,
    items,
    mapping,
    read_table,
    refusal,
    text,
)
from phalanx.core.spec.job import JobSpec
from phalanx.identity.principal import Forbidden
from phalanx.registry.image_reference import ImageReference
from phalanx.registry.signatures import read_key
from phalanx.wire.sync import RequiredSignature

#: The names of files with trust policies; other files are Cedar policies.
ENDINGS = (".yaml", ".yml")


class PolicyDenied(Forbidden):
    """A policy forbids a request, or none permits it."""

    def __init__(self, message: str, policies: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.policies = policies  #: the names of those that forbid it


class TrustPolicy(NamedTuple):
    file: str  #: that it came from
    name: str
    namespaces: tuple[str, ...]  #: patterns; empty means all
    registries: tuple[str, ...]  #: patterns; empty means all
    require_digest: bool
    signed_by: tuple[str, ...]  #: public keys in PEM, one of which has to have signed the image

    def applies_to(self, namespace: str) -> bool:
        patterns = self.namespaces
        return not patterns or any(fnmatchcase(namespace, pattern) for pattern in patterns)

    def check(self, image: str) -> None:
        """Raises PolicyDenied."""
        reference = ImageReference.parse(image)
        registry = reference.registry
        if self.registries and not any(fnmatchcase(registry, each) for each in self.registries):
            allowed = ", ".join(self.registries)
            raise PolicyDenied(
                f"trust policy {self.name} forbids image {image}: registry {registry} is not one of"
                f" {allowed}",
                (self.name,),
            )
        if self.require_digest and reference.digest is None:
            raise PolicyDenied(
                f"trust policy {self.name} forbids image {image}: it has no digest; write"
                f" {reference.name}@sha256:…",
                (self.name,),
            )


def _patterns(value: object) -> tuple[str, ...]:
    return tuple(text(each) for each in items(value, "a list of names or patterns"))


def _keys(value: object) -> tuple[str, ...]:
    keys = tuple(text(each) for each in items(value, "a list of public keys in PEM"))
    for pem in keys:
        try:
            read_key(pem)
        except ValueError as error:
            raise refusal(f"has a key that cannot be read: {error}") from None
    return keys


def _kind(value: object) -> str:
    if value != "TrustPolicy":
        raise refusal("is not TrustPolicy, the only kind that such a file can have")
    return "TrustPolicy"


_FIELDS = {
    "kind": Field(_kind, REQUIRED),
    "name": Field(names.dns_subdomain, REQUIRED),
    "namespaces": Field(_patterns, ()),
    "registries": Field(_patterns, ()),
    "require_digest": Field(boolean, default=False),
    "signed_by": Field(_keys, ()),
}


def read_trust(file: str, written: str) -> list[TrustPolicy]:
    """The trust policies of a YAML file. Raises Invalid."""
    try:
        documents = [each for each in yaml.safe_load_all(written) if each is not None]
    except yaml.YAMLError as error:
        raise Invalid([Problem(f"{file}:", f"is not YAML: {error}")]) from None
    path = FieldPath()
    policies: list[TrustPolicy] = []
    for document in documents:
        with path.at(file):
            what = "a mapping, like {kind: TrustPolicy, name: ml-images}"
            fields: dict[str, Any] = read_table(mapping(document, what), what, _FIELDS)
            del fields["kind"]
            policies.append(TrustPolicy(file, **fields))
    path.raise_problems()
    return policies


class TrustPolicies:
    """The trust policies of the cluster."""

    def __init__(self, policies: Iterable[TrustPolicy] = ()) -> None:
        self._policies = tuple(policies)

    def __len__(self) -> int:
        return len(self._policies)

    def check(self, spec: JobSpec) -> None:
        """Raises PolicyDenied unless every image of a job is allowed for its namespace."""
        for image in {role.image for role in spec.roles if role.image is not None}:
            for policy in self._policies:
                if policy.applies_to(spec.namespace):
                    policy.check(image)

    def signatures(self, namespace: str) -> tuple[RequiredSignature, ...]:
        """The signatures that the images of a namespace need."""
        return tuple(
            RequiredSignature(policy.name, policy.signed_by)
            for policy in self._policies
            if policy.signed_by and policy.applies_to(namespace)
        )
