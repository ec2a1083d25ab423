"""A specification is printed in the native form and reads back equal."""

import contextlib
import string
from enum import StrEnum
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.durations import LONGEST
from phalanx.core.spec.job import (
    CheckpointPolicy,
    Concurrency,
    JobSpec,
    Match,
    Mode,
    Pack,
    PackMode,
    PartialCompletion,
    PreemptionPolicy,
    Restart,
    Role,
    Schedule,
)
from phalanx.core.spec.native_form import native
from phalanx.core.spec.schema import JOB_FIELDS, ROLE_FIELDS, SHORT_FIELDS
from phalanx.core.spec.security import ContainerSecurity
from phalanx.core.spec.validation import job_spec, short_form
from phalanx.core.spec.watch import SpikeRule, ValueRules, WatchAction
from phalanx.core.time_units import MINUTE, SECOND
from phalanx.manifest.bundle import read
from phalanx.manifest.native_file import native_yaml
from phalanx.manifest.read_options import ReadOptions

CLASSES = {"high": 1000, "low": -1000}

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
subdomains = st.lists(labels, min_size=1, max_size=3).map(".".join)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
label_values = words.filter(str.isprintable)
names = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)
ids = st.from_regex(r"j-[0-9a-z]{1,20}", fullmatch=True)
spans = st.integers(1, LONGEST) | st.integers(1, 1000).map(lambda seconds: seconds * SECOND)
amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(1, 10**9),
        "memory": st.integers(1, 2**50),
        "gpu": st.integers(1, 999) | st.integers(1, 16).map(lambda count: count * 1000),
        "nvidia.com/gpu": st.integers(1, 16),
    },
)


images = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "registry.example/", "127.0.0.1:5000/"]),
    st.from_regex(r"x[a-z0-9]{0,8}(/[a-z0-9]{1,8})?", fullmatch=True),
    st.sampled_from(["", ":1.2_b", ":latest"]),
    st.sampled_from(["", "@sha256:" + 64 * "0"]),
)


# Strategies are checked when they are first used, which takes longer than a draw.
commands = words.filter(str.strip) | st.lists(words, max_size=3)
arguments = st.lists(words, max_size=2)
environments = st.dictionaries(names, words, max_size=3)
folders = words.map(lambda word: "/" + word)
runtimes = st.sampled_from(["containers", "runc"])
classes = st.sampled_from(list(CLASSES))
selectors = st.dictionaries(names, label_values, max_size=2)
packs = st.builds(Pack, by=names, mode=st.sampled_from(PackMode))
role_names = st.lists(labels.filter(lambda n: n != "all"), min_size=1, max_size=3, unique=True)
groups = st.lists(st.tuples(labels, subdomains).map("/".join), max_size=2, unique=True)
services = st.dictionaries(subdomains, subdomains.map("https://{}:443".format), max_size=2)
several_ids = st.lists(ids, max_size=3, unique=True)


@cache
def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@cache
def one_of(values: type[StrEnum]) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@st.composite
def roles(draw: st.DrawFn, name: str) -> Role:
    replicas = draw(st.integers(1, 1000))
    image = draw(maybe(images))
    has_own_program = image is not None and draw(st.booleans())
    command = draw(commands)
    given = command if isinstance(command, str) else ("run", *command)
    selector = {} if image is None else {"runtime": draw(runtimes)}
    return Role(
        name=name,
        command=() if has_own_program else given,
        replicas=replicas,
        min=draw(st.integers(0, replicas) | st.just(replicas)),
        env=draw(environments),
        workdir=draw(maybe(folders)),
        resources=draw(amounts),
        node_selector=draw(selectors) | selector,
        per_node=draw(maybe(st.integers(1, 8))),
        image=image,
        args=tuple(draw(arguments)) if has_own_program else (),
        security=None if image is None else draw(maybe(securities)),
    )


securities = st.builds(
    ContainerSecurity,
    run_as_user=st.none() | st.integers(0, 2**32 - 2),
    add_capabilities=st.sampled_from([(), ("NET_ADMIN",), ("SYS_PTRACE", "KILL")]),
    drop_capabilities=st.sampled_from([(), ("ALL",)]),
    apparmor=st.none() | st.sampled_from(["unconfined", "containers/strict"]),
    read_only_root=st.booleans(),
    privileged=st.booleans(),
)


schedules = st.builds(
    Schedule,
    cron=st.sampled_from(["0 2 * * *", "*/5 8-18 * jan mon-fri"]),
    timezone=st.sampled_from(["UTC", "Europe/Zurich", "Etc/GMT+5"]),
    concurrency=st.sampled_from(Concurrency),
    keep_done=st.integers(0, 5),
    keep_failed=st.integers(0, 5),
)


@cache
def watches(*, may_restart: bool) -> st.SearchStrategy[dict[str, ValueRules]]:
    actions = st.sampled_from(
        [action for action in WatchAction if may_restart or action is not WatchAction.RESTART]
    )
    factors = st.integers(1_000_001, 10**12).map(lambda millionths: millionths / 10**6)
    spikes = st.builds(SpikeRule, factors, st.integers(10, 1000), actions)
    rules = st.builds(ValueRules, actions, st.none() | spikes)
    return st.dictionaries(st.sampled_from(["loss", "eval/loss", "grad_norm"]), rules, max_size=2)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    titles = draw(role_names)
    members = tuple(draw(roles(title)) for title in titles)
    needed = sum(role.min for role in members)
    klass = draw(maybe(classes))
    schedule = draw(maybe(schedules))
    fence = draw(st.booleans())
    restart = draw(one_of(Restart))
    is_final = restart is Restart.NEVER
    return JobSpec(
        name=draw(maybe(subdomains)),
        namespace=draw(labels),
        queue=draw(subdomains),
        priority=CLASSES[klass] if klass else draw(st.integers(-(2**31), 2**31 - 1)),
        priority_class=klass,
        roles=members,
        min_available=draw(
            st.integers(max(1, needed), sum(role.replicas for role in members))
            | st.just(max(1, needed))
        ),
        min_resources=draw(amounts),
        max_running=None,
        mode=draw(one_of(Mode)),
        match=draw(one_of(Match)),
        group=tuple(draw(groups)),
        schedule_timeout=draw(maybe(spans)),
        gather_timeout=draw(maybe(spans)),
        pack=draw(maybe(packs)),
        spread=draw(st.booleans()),
        restart=restart,
        on_partial_completion=PartialCompletion.FAIL
        if is_final
        else draw(one_of(PartialCompletion)),
        max_retries=draw(st.integers(1, 1000)),
        backoff=draw(st.integers(0, 5 * MINUTE)),
        grace=draw(st.integers(0, 23 * SECOND - 1 if fence else 60 * MINUTE)),
        time_limit=draw(maybe(spans)),
        stall_after=draw(maybe(spans)),
        watch=draw(watches(may_restart=not is_final)),
        complete_when=draw(st.sampled_from(["all", *titles])),
        preemptible=draw(st.booleans()),
        preemption_policy=draw(one_of(PreemptionPolicy)),
        checkpoint=draw(one_of(CheckpointPolicy)),
        run_as_user=None,
        fence=fence,
        external_services=draw(services),
        after=() if schedule else tuple(draw(several_ids)),
        afterany=() if schedule else tuple(draw(several_ids)),
        afternotok=(),
        schedule=schedule,
    )


@given(specs())
def test_a_printed_specification_reads_back_equal(spec: JobSpec) -> None:
    assert job_spec(native(spec), priority_classes=CLASSES) == spec


@given(specs())
def test_a_specification_in_a_file_reads_back_equal(spec: JobSpec) -> None:
    found = read(native_yaml([spec]).encode(), ReadOptions(priority_classes=CLASSES))
    assert found.jobs == [spec]


@pytest.mark.parametrize(
    "word", ["0o17", "1e3", "0x1F", ".5", "yes", "~", "null", "1:30", "2026-01-01", " ", "a\u2028b"]
)
def test_a_string_that_looks_like_a_number_stays_a_string_in_a_file(word: str) -> None:
    spec = job_spec({"roles": {"w": {"command": ["run", word], "env": {"A": word}}}})
    assert read(native_yaml([spec]).encode()).jobs == [spec]


def test_fields_with_their_default_are_not_printed() -> None:
    document = {"roles": {"worker": {"command": ["true"]}}}
    assert native(job_spec(document)) == document


def test_a_specification_prints_as_a_user_would_write_it() -> None:
    document = {
        "name": "pretrain-7b",
        "roles": {
            "worker": {
                "replicas": 8,
                "min": 4,
                "command": "python train.py",
                "resources": {"cpu": 4, "memory": "32Gi", "gpu": 0.5},
            },
            "ps": {"command": ["serve"]},
        },
        "pack": {"by": "rack"},
        "grace": "90s",
        "time_limit": "6h",
        "after": ["j-1"],
    }
    assert native(job_spec(document)) == document


def test_a_minimum_over_all_roles_is_printed_with_the_minimums_that_are_not_zero() -> None:
    document = {
        "roles": {
            "a": {"command": "x", "replicas": 4},
            "b": {"command": "x", "replicas": 4, "min": 4},
        },
        "min_available": 6,
    }
    assert native(job_spec(document)) == document


# Keys and values that come near to a job, mixed with any that do not.
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["10s", "1Gi", "all", "never", "worker", "0 2 * * *", "default/a", "j-1"])
)
inner_fields = (
    "worker",
    "cpu",
    "memory",
    "memory_mb",
    "gpu",
    "by",
    "cron",
    "timezone",
    "keep",
    "done",
)
fields = st.sampled_from([*JOB_FIELDS, *ROLE_FIELDS, *SHORT_FIELDS, *inner_fields])
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(fields | st.text(max_size=5) | st.integers(), inner, max_size=6)
    ),
    max_leaves=30,
)
near_jobs = st.dictionaries(fields, values, max_size=8).flatmap(
    lambda rest: st.fixed_dictionaries(
        {"command": values}, optional={"replicas": values, "min": values, "env": values}
    ).map(lambda role: {**rest, "roles": {"worker": role}})
)


def problems(document: object) -> tuple[Problem, ...]:
    try:
        spec = job_spec(document, priority_classes=CLASSES, timezones=("UTC",))
    except Invalid as refused:
        return refused.problems
    assert job_spec(native(spec), priority_classes=CLASSES) == spec
    return ()


@given(values | near_jobs)
def test_any_value_is_a_job_or_refused_by_its_paths(document: object) -> None:
    for problem in problems(document):
        assert bool(problem.path) == isinstance(document, dict)
        assert problem.message
        assert str(problem).encode()


@given(values | st.dictionaries(fields, values, max_size=8))
def test_any_value_is_a_job_in_the_short_form_or_refused(document: object) -> None:
    with contextlib.suppress(Invalid):
        assert short_form(document).roles[0].name == "worker"
