"""Policies as text: parsed, checked against the schema, and named by their `@id`."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from phalanx.core.errors import Invalid, Problem
from phalanx.policy.schema import SCHEMA
from phalanx.policy.trust import ENDINGS, TrustPolicy, read_trust

_NOT_INSTALLED = (
    "Cedar is not installed on the server; install it with `pip install 'phalanx[policy]'`"
)
#: All policies together, in bytes and in number.
_SIZE_LIMIT_BYTES = 256 * 1024
_COUNT_LIMIT = 1000


class CedarMissing(Exception):  # noqa: N818
    """The optional package cedarpy is not installed."""

    def __init__(self) -> None:
        super().__init__(_NOT_INSTALLED)


class PolicySummary(NamedTuple):
    id: str
    effect: str  #: `permit` or `forbid`
    file: str


class ParsedPolicies(NamedTuple):
    policies: Any  #: of Cedar
    schema: Any
    summaries: tuple[PolicySummary, ...]


def cedar() -> Any:
    """The module cedarpy. Raises CedarMissing."""
    try:
        import cedarpy  # noqa: PLC0415
    except ImportError:
        raise CedarMissing from None
    return cedarpy


def split_trust(files: Mapping[str, str]) -> tuple[list[TrustPolicy], dict[str, str]]:
    """The trust policies of the files in YAML, and the other files. Raises Invalid."""
    trust = [
        policy
        for file, text in files.items()
        if file.endswith(ENDINGS)
        for policy in read_trust(file, text)
    ]
    return trust, {file: text for file, text in files.items() if not file.endswith(ENDINGS)}


def parse(files: Mapping[str, str]) -> ParsedPolicies:
    """The policies of texts by file. Raises Invalid with every problem, and CedarMissing."""
    cedarpy = cedar()
    problems: list[Problem] = []
    named: dict[str, Any] = {}
    summaries: dict[str, PolicySummary] = {}
    if sum(len(text.encode()) for text in files.values()) > _SIZE_LIMIT_BYTES:
        raise Invalid([Problem("", f"the policies have more than {_SIZE_LIMIT_BYTES} bytes")])
    for file, text in files.items():
        try:
            document = json.loads(cedarpy.policies_to_json_str(text))
        except ValueError as error:
            problems.append(Problem(f"{file}:", f"is not Cedar: {error}"))
            continue
        if document.get("templates"):
            problems.append(
                Problem(f"{file}:", "has a template with slots; write policies without")
            )
        for number, policy in enumerate(document["staticPolicies"].values(), 1):
            name = policy.get("annotations", {}).get("id")
            where = f"{file}: policy {number}:"
            if not name:
                problems.append(Problem(where, 'has no name; write @id("name") before it'))
            elif name in named:
                problems.append(Problem(where, f"has the @id {name} of a policy before it"))
            else:
                named[name] = policy
                summaries[name] = PolicySummary(name, policy["effect"], file)
    if len(named) > _COUNT_LIMIT:
        problems.append(Problem("", f"there are more than {_COUNT_LIMIT} policies"))
    problems += _schema_problems(cedarpy, files, problems)
    if problems:
        raise Invalid(problems)
    text = json.dumps({"staticPolicies": named, "templates": {}, "templateLinks": []})
    policies = cedarpy.PolicySet.from_json_str(text)
    return ParsedPolicies(policies, cedarpy.Schema.from_str(SCHEMA), tuple(summaries.values()))


def _schema_problems(
    cedarpy: Any, files: Mapping[str, str], earlier: list[Problem]
) -> list[Problem]:
    if earlier:
        return []
    problems = []
    for file, text in files.items():
        ids = [
            policy["annotations"]["id"]
            for policy in json.loads(cedarpy.policies_to_json_str(text))["staticPolicies"].values()
        ]
        for error in cedarpy.validate_policies(text, SCHEMA).errors:
            number = error.policy_id.removeprefix("policy")
            name = ids[int(number)] if number.isdecimal() and int(number) < len(ids) else ""
            message = error.error.removeprefix(f"for policy `{error.policy_id}`, ")
            problems.append(Problem(f"{file}: policy {name}:", message))
    return problems
