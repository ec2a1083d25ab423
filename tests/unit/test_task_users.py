"""The users that tasks run as: which namespace has which, and which a job may choose."""

from pathlib import Path

import pytest
from tests.requirements import require_root

from phalanx.agent.task_users import TaskUsers, UserPolicy, UserRefused, check_policy, identity
from phalanx.core.errors import Invalid
from phalanx.core.spec.job import NEEDS_USERS
from phalanx.core.spec.native_form import native
from phalanx.core.spec.validation import job_spec
from phalanx.server.option_readers import printed_users, run_as_users

#: A range in which these two namespaces collide, because it has one uid.
_ONE_UID = UserPolicy(uids=(200_000, 200_000))
_JOB = {"namespace": "ml", "run_as_user": "alice", "roles": {"worker": {"command": "true"}}}


def test_every_namespace_has_a_uid_of_its_own_that_is_the_same_on_all_workers(
    tmp_path: Path,
) -> None:
    policy = UserPolicy(uids=(200_000_000, 299_999_999))
    workers = [TaskUsers(policy, tmp_path / name) for name in ("one", "two")]
    namespaces = [f"team-{n}" for n in range(50)]
    uids = [[worker.user_of(each, None) for each in namespaces] for worker in workers]
    assert uids[0] == uids[1]
    assert len({user.uid for user in uids[0] if user is not None}) == 50


def test_namespaces_that_would_share_a_uid_are_refused_also_after_a_restart(
    tmp_path: Path,
) -> None:
    assert TaskUsers(_ONE_UID, tmp_path / "uids").user_of("a", None) is not None
    again = TaskUsers(_ONE_UID, tmp_path / "uids")
    with pytest.raises(UserRefused, match="namespaces b and a have the same uid 200000"):
        again.user_of("b", None)
    assert again.user_of("a", None) is not None


def test_a_namespace_can_have_a_user_of_its_own(tmp_path: Path) -> None:
    users = TaskUsers(UserPolicy({"ml": "nobody"}), tmp_path / "uids")
    user = users.user_of("ml", None)
    assert user is not None
    assert user.name == "nobody"
    with pytest.raises(UserRefused, match="--task-user other=USER"):
        users.user_of("other", None)
    assert identity(user, tmp_path)["HOME"] == str(tmp_path), "the home of nobody does not exist"


def test_without_settings_tasks_run_as_the_agent(tmp_path: Path) -> None:
    users = TaskUsers(UserPolicy(), tmp_path / "uids")
    assert users.user_of("ml", None) is None
    with pytest.raises(UserRefused, match="run_as_user"):
        users.user_of("ml", "nobody")


@pytest.mark.parametrize(
    ("name", "why"), [("root", "a user of the system"), ("no-such-user", "there is no user")]
)
def test_a_job_cannot_choose_a_user_of_the_system(name: str, why: str, tmp_path: Path) -> None:
    users = TaskUsers(UserPolicy(default="nobody"), tmp_path / "uids")
    with pytest.raises(UserRefused, match=f"run_as_user: .*{why}"):
        users.user_of("ml", name)


def test_settings_that_no_task_could_start_with_are_refused(tmp_path: Path) -> None:
    require_root("only root can run tasks as other users")
    with pytest.raises(UserRefused, match="there is no user no-such-user"):
        check_policy(UserPolicy(default="no-such-user"), tmp_path)
    (tmp_path / "closed").mkdir(mode=0o700)
    with pytest.raises(UserRefused, match="cannot enter"):
        check_policy(UserPolicy(default="nobody"), tmp_path / "closed" / "state")


def test_a_job_may_choose_only_a_user_that_the_operator_permits() -> None:
    permitted = run_as_users("ml=alice+bob,infra=deploy")
    assert printed_users(permitted) == "ml=alice+bob,infra=deploy"
    spec = job_spec(_JOB, run_as_users=permitted)
    assert spec.run_as_user == "alice"
    assert spec.roles[0].node_selector == NEEDS_USERS
    assert native(spec) == _JOB
    for job in (_JOB | {"namespace": "infra"}, _JOB | {"run_as_user": "root"}):
        with pytest.raises(Invalid) as refused:
            job_spec(job, run_as_users=permitted)
        [problem] = refused.value.problems
        assert problem.path == "run_as_user"
        assert "ask an operator to set run_as_users" in problem.message
