"""Policies of the cluster: list, replace, check and test them. Only the roles of tokens decide who
may, so that a policy cannot lock the administrators out."""

from collections.abc import Mapping
from typing import Any

from litestar import Request, get, post, put
from litestar.openapi.spec import Schema

from phalanx.api import request_body
from phalanx.api.audit import record_of
from phalanx.api.auth import ADMINS, principal_of
from phalanx.api.errors import wrong
from phalanx.api.services import services_of
from phalanx.core.errors import Conflict
from phalanx.core.spec import names
from phalanx.core.spec.fields import REQUIRED, Field, FieldPath, as_is, as_key, mapping, text
from phalanx.policy.authorizer import KIND
from phalanx.policy.policy_sets import (
    CedarMissing,
    ParsedPolicies,
    PolicySummary,
    parse,
    split_trust,
)
from phalanx.policy.policy_tests import PolicyTestOutcome, read_tests, run_test
from phalanx.store.protocol import ClusterObject
from phalanx.wire.policies import (
    PoliciesView,
    PolicyFileView,
    PolicyTestReply,
    PolicyTestResult,
    PolicyView,
)
from phalanx.wire.times import iso_time


def _files(value: object) -> dict[str, str]:
    path, files = FieldPath(), {}
    for key, each in mapping(value, "a mapping of file names to texts").items():
        with path.at(as_key(key)):
            files[names.file_name(key)] = text(each)
    path.raise_problems()
    return files


_FIELDS = {"files": Field(_files, REQUIRED)}
_TEST_FIELDS = {"files": Field(_files), "tests": Field(as_is, REQUIRED)}
_EXAMPLE = {"files": {"base.cedar": '@id("all") permit (principal, action, resource);'}}
_OBJECT = Schema(type="object")  # type: ignore[arg-type]
_BODY = request_body.documented({"files": _OBJECT}, _EXAMPLE, required=("files",))
_TEST_BODY = request_body.documented(
    {"files": _OBJECT, "tests": Schema(type="array", items=_OBJECT)},  # type: ignore[arg-type]
    {
        "tests": [
            {
                "name": "ada may submit",
                "principal": {"name": "ada", "namespaces": ["ml"]},
                "job": {"command": "true", "namespace": "ml"},
                "expect": "allow",
            }
        ]
    },
    required=("tests",),
)


@get("/policies", opt={"allowed": ADMINS}, summary="List the policies")
async def list_policies(request: Request[Any, Any, Any]) -> PoliciesView:
    """The policies by name, and the files that they came from."""
    services = services_of(request)
    services.engine.check_leading()
    await services.objects.refresh()
    stored = services.objects.of_kind(KIND)
    parsed = _parse({each.name: each.body for each in stored})
    files = tuple(
        PolicyFileView(each.name, each.body, iso_time(each.changed_at), each.changed_by)
        for each in stored
    )
    return _view(parsed, files)


@put(
    "/policies",
    operation_class=_BODY,
    opt={"allowed": ADMINS, "action": "apply policies"},
    summary="Replace the policies",
)
async def apply_policies(request: Request[Any, Any, Any]) -> PoliciesView:
    """All policies of the cluster are replaced by those of the files. Without files, only the
    built-in rules hold."""
    services, by = services_of(request), principal_of(request).name
    files = (await request_body.read_one(request, "a mapping, like {files: {…}}", _FIELDS))["files"]
    parsed = _parse(files)
    if files and not parsed.summaries:
        why = "have no policies, so that every request would be refused"
        raise wrong("files", f"{why}; send no file to remove all policies")
    services.engine.check_leading()
    await services.objects.refresh()
    now = services.clock()
    removed = [each.key for each in services.objects.of_kind(KIND) if each.name not in files]
    put_files = [ClusterObject(KIND, "", name, body, now, by) for name, body in files.items()]
    await services.objects.change(put_files, removed, record_of(request, now, kind=KIND))
    return _view(parsed)


@post(
    "/policies/check",
    operation_class=_BODY,
    opt={"allowed": ADMINS},
    status_code=200,
    summary="Check policies without applying them",
)
async def check_policies(request: Request[Any, Any, Any]) -> PoliciesView:
    """The syntax, the names, and the schema."""
    fields = await request_body.read_one(request, "a mapping, like {files: {…}}", _FIELDS)
    return _view(_parse(fields["files"]))


@post(
    "/policies/test",
    operation_class=_TEST_BODY,
    opt={"allowed": ADMINS},
    status_code=200,
    summary="Test policies with requests and expected answers",
)
async def run_policy_tests(request: Request[Any, Any, Any]) -> PolicyTestReply:
    """The policies of `files`, or those of the cluster. Nothing is changed."""
    services = services_of(request)
    fields = await request_body.read_one(request, "a mapping, like {tests: […]}", _TEST_FIELDS)
    tests = read_tests({"tests": fields["tests"]})
    files = fields["files"]
    if files is None:
        await services.objects.refresh()
        files = {each.name: each.body for each in services.objects.of_kind(KIND)}
    parsed = _parse(files)
    if parsed.policies is None:
        raise wrong("files", "have no Cedar policies to test")
    queues = await services.engine.do(lambda turn: dict(turn.cluster.queues))
    labels = services.info.namespace_labels
    outcomes = [run_test(test, parsed, queues, labels) for test in tests]
    passed = sum(outcome.passed for outcome in outcomes)
    return PolicyTestReply(passed, len(outcomes) - passed, tuple(map(_result, outcomes)))


def _parse(files: Mapping[str, str]) -> ParsedPolicies:
    """Raises Invalid, and Conflict if Cedar is not installed."""
    try:
        trust, rest = split_trust(files)
        parsed = parse(rest) if rest else ParsedPolicies(None, None, ())
        of_trust = tuple(PolicySummary(each.name, "trust", each.file) for each in trust)
        return parsed._replace(summaries=(*parsed.summaries, *of_trust))
    except CedarMissing as error:
        raise Conflict(str(error)) from None


def _view(parsed: ParsedPolicies, files: tuple[PolicyFileView, ...] = ()) -> PoliciesView:
    listed = tuple(PolicyView(*each) for each in parsed.summaries)
    return PoliciesView(listed, files)


def _result(outcome: PolicyTestOutcome) -> PolicyTestResult:
    return PolicyTestResult(
        outcome.test.name,
        outcome.passed,
        outcome.test.expected,
        outcome.answer,
        outcome.decision.policies,
        outcome.decision.why,
        outcome.test.policy or "",
    )


ROUTES = [list_policies, apply_policies, check_policies, run_policy_tests]
