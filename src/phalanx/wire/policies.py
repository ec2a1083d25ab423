"""Policies of the cluster, and tests of them, as the API has them."""

import msgspec


class PolicyView(msgspec.Struct, frozen=True):
    id: str
    effect: str  #: `permit` or `forbid`
    file: str


class PolicyFileView(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    text: str
    changed_at: str = ""
    changed_by: str = ""


class PoliciesView(msgspec.Struct, frozen=True, omit_defaults=True):
    policies: tuple[PolicyView, ...] = ()
    files: tuple[PolicyFileView, ...] = ()


class PolicyTestResult(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    passed: bool
    expected: str
    answer: str  #: `allow` or `deny`
    policies: tuple[str, ...] = ()  #: that decided
    why: str = ""  #: of a refusal
    policy: str = ""  #: the one that is expected to decide


class PolicyTestReply(msgspec.Struct, frozen=True):
    passed: int
    failed: int
    results: tuple[PolicyTestResult, ...]
