"""Invalid jobs are refused with all problems and their paths; valid jobs get their defaults."""

from collections.abc import Sized
from typing import Any

import pytest

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.fields import PROBLEM_LIMIT
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
from phalanx.core.spec.validation import in_short_form, is_short_form, job_spec, short_form
from phalanx.core.time_units import MINUTE, SECOND


def job(role: dict[str, Any] | None = None, /, **fields: Any) -> dict[str, Any]:
    """A job of one role that is right but for what a test says."""
    return {"roles": {"worker": {"command": "true"} | (role or {})}} | fields


def problems(document: object, **settings: Any) -> dict[str, str]:
    """What is wrong with a document, by path."""
    with pytest.raises(Invalid) as refused:
        job_spec(document, **settings)
    return {problem.path: problem.message for problem in refused.value.problems}


def test_only_the_command_is_required() -> None:
    assert job_spec({"roles": {"worker": {"command": ["python", "train.py"]}}}) == JobSpec(
        name=None,
        namespace="default",
        queue="default",
        priority=0,
        priority_class=None,
        roles=(
            Role(
                name="worker",
                command=("python", "train.py"),
                replicas=1,
                min=1,
                env={},
                workdir=None,
                resources={},
                node_selector={},
                per_node=None,
            ),
        ),
        min_available=1,
        min_resources={},
        max_running=None,
        mode=Mode.STRICT,
        match=Match.ONLY_WAITING,
        group=(),
        schedule_timeout=None,
        gather_timeout=None,
        pack=None,
        spread=False,
        restart=Restart.GANG,
        on_partial_completion=PartialCompletion.FAIL,
        max_retries=3,
        backoff=10 * SECOND,
        grace=15 * SECOND,
        time_limit=None,
        stall_after=None,
        watch={},
        complete_when="all",
        preemptible=True,
        preemption_policy=PreemptionPolicy.LOWER,
        checkpoint=CheckpointPolicy.NONE,
        run_as_user=None,
        fence=False,
        external_services={},
        after=(),
        afterany=(),
        afternotok=(),
        schedule=None,
    )


def test_every_field_can_be_given() -> None:
    spec = job_spec(
        {
            "name": "pretrain-7b",
            "namespace": "research",
            "queue": "gpu.large",
            "priority": -5,
            "roles": {
                "ps": {"command": "serve"},
                "worker": {
                    "replicas": 8,
                    "min": 4,
                    "command": ["python", "train.py"],
                    "env": {"A": "1"},
                    "workdir": "/srv",
                    "resources": {"cpu": 4, "memory": "32Gi", "gpu": 1, "vram_mb": 8192},
                    "node_selector": {"gpu_model": "h100"},
                    "per_node": 2,
                },
            },
            "min_available": 6,
            "mode": "non-strict",
            "match": "waiting-and-running",
            "group": ["research/a", "research/b"],
            "schedule_timeout": "1h",
            "pack": {"by": "rack", "mode": "prefer"},
            "spread": True,
            "restart": "task",
            "max_retries": 5,
            "backoff": "30s",
            "grace": 2,
            "time_limit": "6h",
            "stall_after": "10m",
            "complete_when": "worker",
            "preemptible": False,
            "preemption_policy": "never",
            "checkpoint": "all",
            "fence": True,
            "schedule": {
                "cron": "0 2 * * mon-fri",
                "timezone": "Europe/Zurich",
                "concurrency": "replace",
                "keep": {"done": 7},
            },
        }
    )
    assert [role.name for role in spec.roles] == ["ps", "worker"]
    assert [role.min for role in spec.roles] == [0, 4]
    assert spec.min_available == 6
    assert spec.roles[1].resources["memory"] == 32 * 1024**3
    assert spec.pack == Pack("rack", PackMode.PREFER)
    assert spec.stall_after == 10 * MINUTE
    assert spec.schedule == Schedule("0 2 * * mon-fri", "Europe/Zurich", Concurrency.REPLACE, 7, 1)


def test_a_null_field_has_its_default() -> None:
    document = job({"env": None, "min": None}, name=None, queue=None, mode=None, after=None)
    assert job_spec(document) == job_spec(job())


def test_a_minimum_above_the_replicas_is_named_with_both_numbers() -> None:
    with pytest.raises(Invalid, match=r"^roles\.worker\.min is 9 but replicas is 8; "):
        job_spec(job({"replicas": 8, "min": 9}))


def test_all_problems_are_reported_at_once() -> None:
    document = {
        "name": "Bad Name",
        "prority": 1,
        "mode": "loose",
        "roles": {
            "worker": {"replicas": -1, "env": {"A": 1}, "resources": {"cpu": "x"}},
            "ps": {"command": [], "min": 2},
            "Eval": "python",
        },
        "grace": "soon",
        "pack": {"mode": "maybe"},
        "schedule": {"cron": "* * * *", "keep": {"done": -1}},
        "group": ["a", "default/b", "default/b"],
        "complete_when": "nobody",
    }
    found = problems(document)
    assert set(found) == {
        "name",
        "prority",
        "mode",
        "roles.worker.replicas",
        "roles.worker.env.A",
        "roles.worker.resources.cpu",
        "roles.worker.command",
        "roles.ps.command",
        "roles.ps.min",
        "roles.Eval",
        "grace",
        "pack.by",
        "pack.mode",
        "schedule.cron",
        "schedule.keep.done",
        "group[0]",
        "group[2]",
        "complete_when",
    }
    assert found["prority"] == "is not a known field; did you mean priority?"
    assert found["mode"] == 'is "loose"; write strict or non-strict'
    assert found["roles.worker.command"] == "is missing; it is required"
    assert found["roles.worker.env.A"] == "is 1, not a string; write it in quotes"


def test_a_field_of_a_role_next_to_the_roles_is_refused_with_its_right_path() -> None:
    found = problems(job(replicas=8))
    assert found == {
        "replicas": "is a field of a role, not of the job; write it as roles.NAME.replicas"
    }


def test_a_field_of_the_job_in_a_role_is_refused_with_its_right_path() -> None:
    found = problems(job({"restart": "never"}))
    assert found == {
        "roles.worker.restart": "is a field of the job, not of a role; write it next to roles",
    }


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "Upper", "use lower-case letters"),
        ("name", "-a", "use lower-case letters"),
        ("name", "a..b", "use lower-case letters"),
        ("name", "a" * 64, "use lower-case letters"),
        ("name", ".".join(["a" * 50] * 6), "and has 305 characters; use at most 253"),
        ("name", "a\n", "use lower-case letters"),
        ("name", "", "use lower-case letters"),
        ("name", 7, "is 7, not a string; write it in quotes"),
        ("namespace", "a.b", "use lower-case letters"),
        ("queue", "a_b", "use lower-case letters"),
        ("priority", 2**31, "it must be at most 2147483647"),
        ("priority", -(2**31) - 1, "it must be at least -2147483648"),
        ("priority", 1.5, "is 1.5; write a whole number"),
        ("priority", True, "is true; write a whole number"),
        ("priority", "high", 'is "high"; write a whole number'),
        ("roles", {}, "is empty; write at least one role"),
        ("roles", [], "is a list; write a mapping of names to roles"),
        ("roles", None, "is missing"),
        ("min_available", 0, "it must be at least 1"),
        ("min_available", 2, "is 2 but the roles have 1 replicas in total"),
        ("match", "all", "write only-waiting or waiting-and-running or"),
        ("match", ["x"], "is a list; write only-waiting"),
        ("group", "default/a", 'is "default/a"; write a list'),
        ("schedule_timeout", 0, "write a duration longer than 0"),
        ("gather_timeout", 0, "write a duration longer than 0"),
        ("min_resources", [1], "write a mapping"),
        ("max_running", 0, "it must be at least 1"),
        ("max_running", 1, "needs restart: task, because with restart: gang all tasks start"),
        ("time_limit", "0s", "write a duration longer than 0"),
        ("stall_after", -1, "cannot be negative"),
        ("time_limit", "200000d", "at most 36525d"),
        ("pack", "rack", "write a mapping, like {by: rack, mode: require}"),
        ("spread", "yes", 'is "yes"; write true or false'),
        ("spread", 1, "is 1; write true or false"),
        ("restart", "always", "write gang or task or never"),
        ("max_retries", -1, "at least 0"),
        ("max_retries", 1001, "at most 1000"),
        ("backoff", "6m", "at most 5m"),
        ("grace", "2h", "at most 1h"),
        ("grace", -1, "cannot be negative"),
        ("complete_when", "ps", 'is "ps", which is not a role; write all, or one of'),
        ("complete_when", 3, "not a string"),
        ("preemption_policy", "higher", "write lower or never"),
        ("checkpoint", True, "is true; write none or each or all"),
        ("schedule", "0 2 * * *", "write a mapping"),
        ("after", "j-1", "write a list of ids or names of jobs"),
    ],
)
def test_an_invalid_field_is_refused_with_its_value_and_a_cure(
    field: str, value: object, said: str
) -> None:
    found = problems(job(**{field: value}))
    assert list(found) == [field]
    assert said in found[field]


@pytest.mark.parametrize(
    ("watched", "path", "said"),
    [
        ({"loss": {}}, "watch.loss", "has no rule; write nan, spike or both"),
        ({"loss": "fail"}, "watch.loss", "write a mapping, like {nan: fail, spike: 5x}"),
        ({"loss": {"nan": "stop"}}, "watch.loss.nan", "write event or restart or fail"),
        ({"loss": {"spike": "1x"}}, "watch.loss.spike.factor", "write a factor above 1"),
        ({"loss": {"spike": 10**400}}, "watch.loss.spike.factor", "write a factor above 1"),
        ({"loss": {"spike": {"window": 9}}}, "watch.loss.spike.window", "at least 10"),
        ({"a b": {"nan": "fail"}}, 'watch["a b"]', "is not the name of a value"),
        ({f"v{n}": {"nan": "fail"} for n in range(9)}, "watch", "it has at most 8"),
        ({"loss": {"nan": "restart"}}, "watch.loss.nan", "but restart is never"),
    ],
)
def test_an_invalid_rule_for_a_value_is_refused(
    watched: dict[str, object], path: str, said: str
) -> None:
    found = problems(job(watch=watched, restart="never"))
    assert list(found) == [path]
    assert said in found[path]


@pytest.mark.parametrize(
    ("field", "value", "path", "said"),
    [
        ("replicas", 0, "replicas", "at least 1"),
        ("replicas", 10**9, "replicas", "at most 10000"),
        pytest.param("replicas", 10**5000, "replicas", "at most 10000", id="5001 digits"),
        ("replicas", "8", "replicas", 'is "8"; write a whole number'),
        ("min", -1, "min", "at least 0"),
        ("per_node", 0, "per_node", "at least 1"),
        ("command", "  ", "command", "is empty"),
        ("command", [], "command", "has no program"),
        ("command", [""], "command", "has no program"),
        ("command", ["sleep", 5], "command[1]", "is 5, not a string; write it in quotes"),
        ("command", ["a\0b"], "command[0]", "NUL"),
        ("command", "a\0b", "command", "NUL"),
        ("command", "a\ud800", "command", "surrogate"),
        ("command", {"a": 1}, "command", "is a mapping"),
        pytest.param("command", "x" * 200_000, "command", "put the text in a file", id="200 kB"),
        ("env", ["A=1"], "env", "is a list; write a mapping"),
        ("env", {"A": 7}, "env.A", "write it in quotes"),
        ("env", {"A": True}, "env.A", "write it in quotes"),
        ("env", {"A": None}, "env.A", "write a string"),
        ("env", {"A=B": "x"}, 'env["A=B"]', "without '='"),
        ("env", {"": "x"}, 'env[""]', "without '='"),
        ("env", {"A": "\0"}, "env.A", "NUL"),
        ("workdir", "srv", "workdir", "absolute path"),
        ("node_selector", {"zone": 1}, "node_selector.zone", "write it in quotes"),
        ("node_selector", {"a": "x\x1b"}, "node_selector.a", "characters that cannot be printed"),
        ("node_selector", {"a b": "x"}, 'node_selector["a b"]', "use letters, digits"),
        ("resources", {"gpu": 1.5}, "resources.gpu", "a fraction of one GPU or whole GPUs"),
        ("resources", "gpu=1", "resources", "write a mapping"),
    ],
)
def test_an_invalid_field_of_a_role_is_refused_with_its_path(
    field: str, value: object, path: str, said: str
) -> None:
    found = problems(job({field: value}))
    assert list(found) == [f"roles.worker.{path}"]
    assert said in found[f"roles.worker.{path}"]
    assert len(found[f"roles.worker.{path}"]) < 300


@pytest.mark.parametrize("document", [None, 1, "job", [], [job()], True])
def test_a_document_that_is_not_a_mapping_is_refused(document: object) -> None:
    assert list(problems(document)) == [""]


def test_the_number_of_tasks_of_all_roles_is_limited() -> None:
    roles = {f"r{n}": {"command": "x", "replicas": 6_000} for n in range(2)}
    found = problems({"roles": roles})
    assert found == {
        "roles": "have 12000 replicas in total; a job has at most 10000: lower replicas"
    }


def test_the_number_of_roles_is_limited() -> None:
    found = problems({"roles": {f"r{n}": {"command": "x"} for n in range(1001)}})
    assert found == {
        "roles": "has 1001 roles; a job has at most 1000: write equal roles as one role with"
        " replicas"
    }


@pytest.mark.parametrize(
    ("field", "path", "value", "limit"),
    [
        ("env", "roles.worker.env", {f"V{n}": "x" for n in range(1001)}, 1000),
        ("node_selector", "roles.worker.node_selector", {f"l{n}": "x" for n in range(101)}, 100),
        ("resources", "roles.worker.resources", {f"a.b/{n}": 1 for n in range(65)}, 64),
        ("after", "after", [f"j-{n}" for n in range(1001)], 1000),
        ("group", "group", [f"a/b{n}" for n in range(101)], 100),
    ],
)
def test_the_number_of_entries_is_limited(field: str, path: str, value: Sized, limit: int) -> None:
    document = job({field: value}) if path.startswith("roles") else job(**{field: value})
    assert problems(document) == {
        path: f"has {len(value)} entries; it has at most {limit}: remove some"
    }


def test_the_tasks_that_variables_list_are_limited() -> None:
    listing = {"command": "x", "env": {"HOSTS": "$(hosts.b) " * 5}}
    found = problems({"roles": {"a": listing, "b": {"command": "x", "replicas": 5000}}})
    assert found["roles.a.env"].startswith("has references that list 25000 tasks in all")


@pytest.mark.parametrize("name", ["Worker", "a.b", "", "a" * 64, "a_b"])
def test_a_role_is_named_as_a_dns_label(name: str) -> None:
    [said] = problems({"roles": {name: {"command": "x"}}}).values()
    assert "lower-case letters" in said or "at most 63" in said


def test_a_role_cannot_be_named_all() -> None:
    [said] = problems({"roles": {"all": {"command": "x"}}}).values()
    assert "choose another name" in said


def test_the_minimum_is_the_sum_of_the_roles() -> None:
    roles = {"a": {"command": "x", "replicas": 4}, "b": {"command": "x", "replicas": 4, "min": 1}}
    assert job_spec({"roles": roles}).min_available == 5


def test_a_role_without_min_has_none_when_the_minimum_is_over_all_roles() -> None:
    roles = {"a": {"command": "x", "replicas": 4}, "b": {"command": "x", "replicas": 4, "min": 1}}
    spec = job_spec({"roles": roles, "min_available": 6})
    assert [role.min for role in spec.roles] == [0, 1]
    assert spec.min_available == 6


def test_the_minimum_is_never_below_the_sum_of_the_roles() -> None:
    document = job({"replicas": 4, "min": 3}, min_available=1)
    assert job_spec(document).min_available == 3


def test_a_job_that_could_start_with_no_task_is_refused() -> None:
    found = problems(job({"min": 0}))
    assert found == {
        "roles": "all have min: 0; set min_available, or give a role a min of at least 1"
    }


def test_max_retries_of_0_is_read_as_1() -> None:
    assert job_spec(job(max_retries=0)).max_retries == 1


def test_a_priority_class_gives_the_priority() -> None:
    spec = job_spec(job(priority_class="high"), priority_classes={"high": 1000})
    assert (spec.priority, spec.priority_class) == (1000, "high")


def test_an_unknown_priority_class_is_refused_with_the_known_ones() -> None:
    found = problems(job(priority_class="hi"), priority_classes={"low": 1, "high": 2})
    assert found == {
        "priority_class": 'is "hi", which is not a configured priority class; use one of: high, low'
    }
    found = problems(job(priority_class="hi"))
    assert found == {
        "priority_class": 'is "hi", but the server has no priority classes; write priority instead'
    }


def test_a_priority_and_a_class_exclude_each_other() -> None:
    found = problems(job(priority_class="high", priority=0), priority_classes={"high": 2})
    assert found == {"priority": "cannot be combined with priority_class; write one of them"}


@pytest.mark.parametrize("item", ["a", "/a", "a/", "A/b", "a/b/c", "a/B", ""])
def test_a_group_lists_namespace_and_name(item: str) -> None:
    assert "namespace/name" in problems(job(group=[item]))["group[0]"]


def test_dependencies_are_ids_or_names_of_jobs_without_repetition() -> None:
    found = problems(job(after=["j-1", "K-2", "j-1", 4, "a/b/c"]))
    assert list(found) == ["after[1]", "after[2]", "after[3]", "after[4]"]
    assert job_spec(job(after=["j-2", "ml/train"])).after == ("j-2", "ml/train")


def test_a_fenced_job_must_stop_within_its_lease() -> None:
    assert "write less than 23s" in problems(job(fence=True, grace="23s"))["grace"]
    assert job_spec(job(fence=True, grace="22s")).fence
    assert not job_spec(job(fence=False, grace="23s")).fence
    assert job_spec(job(fence=True, grace="23s"), lost_after=MINUTE).fence
    assert list(problems(job(fence=True), lost_after=5 * SECOND)) == ["grace"]


def test_a_job_with_a_schedule_has_no_dependencies() -> None:
    found = problems(job(after=["j-1"], schedule={"cron": "0 2 * * *"}))
    assert found == {"after": "cannot be combined with schedule; remove one of them"}


def test_an_unknown_time_zone_is_refused() -> None:
    document = job(schedule={"cron": "0 2 * * *", "timezone": "Europe/Atlantis"})
    assert job_spec(document).schedule is not None
    found = problems(document, timezones={"UTC"})
    assert list(found) == ["schedule.timezone"]
    assert list(problems(job(schedule={"cron": "0 2 * * *", "timezone": "../etc"}))) == [
        "schedule.timezone"
    ]


def test_the_name_of_a_job_with_a_schedule_leaves_space_for_the_minute() -> None:
    name = ".".join(["a" * 48] * 5)
    assert job_spec(job(name=name)).name == name
    assert list(problems(job(name=name, schedule={"cron": "0 2 * * *"}))) == ["name"]


def test_a_document_that_contains_itself_is_refused_with_its_path() -> None:
    document = job()
    document["roles"]["worker"]["env"] = document
    loop: list[object] = []
    loop.append(loop)
    document["group"] = loop
    document["pack"] = document
    found = problems(document)
    assert found["group[0]"] == "is a list, not a string; write a string"
    assert "roles.worker.env.roles" in found
    assert "pack.by" in found


def test_keys_that_are_not_strings_are_refused() -> None:
    found = problems({"roles": {1: {"command": "x"}, "a": {"command": "x", 2: 3}}, None: 1})
    assert set(found) == {"null", "roles.1", "roles.a.2"}


def test_the_number_of_reported_problems_is_limited() -> None:
    with pytest.raises(Invalid) as refused:
        job_spec(job(**{f"field{n}": n for n in range(100_000)}))
    assert len(refused.value.problems) == PROBLEM_LIMIT


def test_the_short_form_is_a_gang_of_workers() -> None:
    spec = short_form(
        {
            "command": "python train.py",
            "gang_size": 4,
            "resources": {"vram_mb": 8192, "memory_mb": 1024},
            "priority": 1,
            "depends_on": ["j-1"],
        }
    )
    assert spec == job_spec(
        {
            "roles": {
                "worker": {
                    "replicas": 4,
                    "command": "python train.py",
                    "resources": {"vram_mb": 8192, "memory": "1Gi"},
                }
            },
            "priority": 1,
            "after": ["j-1"],
        }
    )


def test_the_short_form_needs_only_a_command() -> None:
    assert short_form({"command": "true"}) == job_spec(job())
    assert short_form({"command": "true", "gang_size": 0}) == job_spec(job())


def test_problems_of_the_short_form_have_its_own_paths() -> None:
    with pytest.raises(Invalid) as refused:
        short_form({"gang_size": -1, "resources": {"vram_mb": -1}, "depends_on": 1, "gang": 2})
    assert [problem.path for problem in refused.value.problems] == [
        "gang",
        "command",
        "gang_size",
        "resources.vram_mb",
        "depends_on",
    ]
    with pytest.raises(Invalid, match="a job is a mapping with a command"):
        short_form("true")
    with pytest.raises(Invalid) as refused:
        short_form({"command": ["curl", "${resources.hub.token}"], "priority": "high"})
    assert [problem.path for problem in refused.value.problems] == ["priority", "command"]
    native = ("roles.worker.command[1]", "roles.worker.replicas", "after[0]", "queue", "queued")
    found = in_short_form(Invalid([Problem(path, "is wrong") for path in native])).problems
    short = ["command[1]", "gang_size", "depends_on[0]", "queue_name", "queued"]
    assert [problem.path for problem in found] == short


def test_the_short_form_has_the_namespace_of_the_native_form() -> None:
    assert short_form({"command": "true", "namespace": "ml"}).namespace == "ml"
    assert short_form({"command": "true"}).namespace == job_spec(job()).namespace == "default"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"command": "x"}, True),
        ({"gang_size": 4}, True),
        ({"depends_on": []}, True),
        ({"command": "x", "roles": {}}, False),
        ({"roles": {}}, False),
        ({}, False),
        ("command", False),
        (None, False),
    ],
)
def test_the_short_form_is_recognised_by_its_fields(document: object, expected: bool) -> None:
    assert is_short_form(document) is expected


def test_a_role_with_an_image_needs_a_worker_that_runs_containers() -> None:
    [role] = job_spec({"roles": {"w": {"image": "train:7b", "args": ["-v"]}}}).roles
    assert (role.image, role.command, role.args) == ("train:7b", (), ("-v",))
    assert role.node_selector == {"runtime": "containers"}


def test_a_role_may_ask_for_another_runtime() -> None:
    document = {"image": "train:7b", "command": "run", "node_selector": {"runtime": "runc"}}
    [role] = job_spec({"roles": {"w": document}}).roles
    assert role.node_selector == {"runtime": "runc"}


def test_a_job_with_an_image_cannot_be_claimed_by_any_process() -> None:
    assert not job_spec({"roles": {"w": {"image": "train:7b"}}}).is_anonymous


@pytest.mark.parametrize(
    ("role", "path"),
    [
        ({"args": ["-v"], "command": "run"}, "roles.w.args"),
        ({"args": ["-v"], "command": "run", "image": "i"}, "roles.w.args"),
        ({"image": "two words"}, "roles.w.image"),
        ({"image": ""}, "roles.w.image"),
        ({"image": "dir:/tmp/x@sha256:00"}, "roles.w.image"),
        ({"image": "oci-archive:x"}, "roles.w.image"),
        ({"image": "--volume=/:/host"}, "roles.w.image"),
        ({"image": "127.0.0.1:evil.example/x"}, "roles.w.image"),
        ({"image": "registry.example/../other.example/x"}, "roles.w.image"),
        ({"command": "run", "env": {"A": "$(hosts.x)"}}, "roles.w.env.A"),
        ({"command": "run", "env": {"A": "$(addresses.w.70000)"}}, "roles.w.env.A"),
    ],
)
def test_invalid_programs_and_references_are_refused(role: object, path: str) -> None:
    assert list(problems({"roles": {"w": role}})) == [path]
