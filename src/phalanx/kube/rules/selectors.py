"""Label selectors and node selectors, with all operators of Kubernetes."""

import re
from collections.abc import Mapping

import msgspec

from phalanx.kube.objects.metadata import LabelSelector, SelectorRequirement
from phalanx.kube.objects.pod import NodeSelectorTerm
from phalanx.plan.model import NodeFacts

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_LARGEST = 2**63


def satisfies(labels: Mapping[str, str], requirement: SelectorRequirement) -> bool:
    """Whether labels satisfy a requirement. An unknown operator is never satisfied."""
    value, values = labels.get(requirement.key), requirement.values
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(value, requirement)
    return False


def _compares(value: str | None, requirement: SelectorRequirement) -> bool:
    """Whether a label is greater or less than a bound; both must be whole numbers of 64 bits."""
    number = _whole_number(value)
    bound = _whole_number(requirement.values[0]) if len(requirement.values) == 1 else None
    if number is None or bound is None:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound


def _whole_number(value: str | None) -> int | None:
    if value is None or _WHOLE.fullmatch(value) is None:
        return None
    number = int(value)
    return number if -_LARGEST <= number < _LARGEST else None


class LabelQuery(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A label selector in a normal form, so that equal selectors are one."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[SelectorRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.labels) and all(
            satisfies(labels, requirement) for requirement in self.expressions
        )

    @property
    def anchor(self) -> tuple[str, str] | None:
        """A label that every match has; None if there is none."""
        if self.labels:
            return self.labels[-1]
        for each in self.expressions:
            if each.operator == "In" and len(each.values) == 1:
                return each.key, each.values[0]
        return None


def query_of(selector: LabelSelector, *more: SelectorRequirement) -> LabelQuery:
    """The query of a selector and further requirements."""
    expressions = {*selector.match_expressions, *more}
    return LabelQuery(
        tuple(sorted(selector.match_labels.items())),
        tuple(sorted(expressions, key=msgspec.structs.astuple)),
    )


def matches_term(node: NodeFacts, term: NodeSelectorTerm) -> bool:
    """Whether a node matches a term of a node selector. The empty term matches no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return all(satisfies(node.labels, each) for each in term.match_expressions) and all(
        satisfies(fields, each) for each in term.match_fields
    )


def matches_any(node: NodeFacts, terms: tuple[NodeSelectorTerm, ...]) -> bool:
    """Whether a node matches one of the terms of a node selector."""
    return any(matches_term(node, term) for term in terms)
