"""Tests of policies: requests in a file, each with the answer that is expected."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from phalanx.core.errors import Invalid, Problem
from phalanx.core.model import Queue
from phalanx.core.spec import names
from phalanx.core.spec.fields import (
    REQUIRED,
    Field,
    FieldPath,
    items,
    mapping,
    read_table,
    refusal,
    text,
)
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import is_short_form, job_spec, short_form
from phalanx.identity.principal import Principal
from phalanx.policy.access_requests import (
    AccessRequest,
    request_on_job,
    request_on_secret,
    request_to_manage,
    requests_of_job,
)
from phalanx.policy.authorizer import Decision, Labels, evaluate
from phalanx.policy.policy_sets import ParsedPolicies

TEST_LIMIT = 1000
_ANSWERS = ("allow", "deny")


class PolicyTest(NamedTuple):
    name: str
    principal: Principal
    expected: str  #: `allow` or `deny`
    policy: str | None  #: that has to be among those that decide
    subject: str  #: the field that says what is asked
    asked: Any  #: the value of that field


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text(each) for each in items(value, "a list of names"))


_PRINCIPAL = {
    "name": Field(text, REQUIRED),
    "role": Field(text, "user"),
    "namespaces": Field(_texts, ()),
}


def _principal(value: object) -> Principal:
    fields = read_table(value, "a mapping, like {name: ada, namespaces: [ml]}", _PRINCIPAL)
    return Principal(fields["name"], fields["role"], fields["namespaces"])


def _answer(value: object) -> str:
    if value not in _ANSWERS:
        raise Invalid([Problem("", "is not an answer; write allow or deny")])
    return text(value)


def _secret(value: object) -> tuple[str, str]:
    namespace, slash, name = text(value).partition("/")
    if not slash:
        raise refusal("is not a secret; write NAMESPACE/NAME")
    return names.dns_label(namespace), names.dns_label(name)


def _job(value: object) -> JobSpec:
    return short_form(value) if is_short_form(value) else job_spec(value)


_FIELDS = {
    "name": Field(text, REQUIRED),
    "principal": Field(_principal, REQUIRED),
    "expect": Field(_answer, REQUIRED),
    "policy": Field(text),
    "job": Field(_job),
    "cancel_job": Field(_job),
    "manage_job": Field(_job),
    "manage_cron": Field(_job),
    "manage_secret": Field(_secret),
    "manage_queue": Field(text),
    "manage_worker": Field(text),
}
#: The actions on a job or a cron that exists, by field.
_ON_JOBS = {"cancel_job": "CancelJob", "manage_job": "ManageJob", "manage_cron": "ManageCron"}
_SUBJECTS = ("job", *_ON_JOBS, "manage_secret", "manage_queue", "manage_worker")


def read_tests(document: object) -> list[PolicyTest]:
    """The tests of a file, `{tests: [...]}`. Raises Invalid with every problem."""
    listed = mapping(document, "a mapping, like {tests: […]}").get("tests")
    path = FieldPath().at("tests")
    tests = []
    entries = items(listed, "a list of tests")
    if len(entries) > TEST_LIMIT:
        raise Invalid([Problem("tests", f"has more than {TEST_LIMIT} tests")])
    for number, each in enumerate(entries):
        with path.at(number):
            tests.append(
                _test(read_table(each, "a mapping with name, principal and expect", _FIELDS))
            )
    path.raise_problems()
    return tests


def _test(fields: dict[str, Any]) -> PolicyTest:
    given = [subject for subject in _SUBJECTS if fields[subject] is not None]
    if len(given) != 1:
        raise Invalid([Problem("", f"needs one of {', '.join(_SUBJECTS)}")])
    [subject] = given
    return PolicyTest(
        fields["name"],
        fields["principal"],
        fields["expect"],
        fields["policy"],
        subject,
        fields[subject],
    )


class PolicyTestOutcome(NamedTuple):
    test: PolicyTest
    decision: Decision

    @property
    def answer(self) -> str:
        return "allow" if self.decision.is_allowed else "deny"

    @property
    def passed(self) -> bool:
        is_named = self.test.policy is None or self.test.policy in self.decision.policies
        return self.answer == self.test.expected and is_named


def run_test(
    test: PolicyTest, parsed: ParsedPolicies, queues: Mapping[str, Queue], labels: Labels
) -> PolicyTestOutcome:
    """The first refusal of the requests of a test, or all policies that permit them."""
    policies: dict[str, None] = {}
    for request in _requests(test, queues):
        decision = evaluate(parsed, request, labels)
        if not decision.is_allowed:
            return PolicyTestOutcome(test, decision)
        policies |= dict.fromkeys(decision.policies)
    return PolicyTestOutcome(test, Decision(is_allowed=True, policies=tuple(policies)))


def _requests(test: PolicyTest, queues: Mapping[str, Queue]) -> list[AccessRequest]:
    principal = test.principal
    if test.subject == "job":
        return list(requests_of_job(principal, test.asked, queues))
    if test.subject in _ON_JOBS:
        action = _ON_JOBS[test.subject]
        return [request_on_job(principal, action, test.asked, principal.name)]
    if test.subject == "manage_secret":
        return [request_on_secret(principal, *test.asked)]
    return [request_to_manage(principal, test.subject.removeprefix("manage_"), test.asked)]
