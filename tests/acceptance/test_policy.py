"""`phalanx policy`, with the commands of docs/how-to/policy.md, and every way in for a job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.pages import blocks, commands

LARGE = """@id("no-large-jobs") forbid (principal, action == Action::"SubmitJob", resource)
when { resource.gpus > 4 };"""
EVERYTHING = '@id("everything") permit (principal, action, resource);'
JOB = "{name: big, roles: {worker: {command: 'true', replicas: 8, resources: {gpu: 1}}}}"
REFUSAL = "policy no-large-jobs forbids SubmitJob on namespace default for local"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.chdir(tmp_path)
    with Fleet(tmp_path) as running:
        yield running


def test_the_commands_of_the_page_work_as_it_says(fleet: Fleet) -> None:
    Path("limits.cedar").write_text(blocks("policy", "text")[0])
    Path("tests.yaml").write_text(blocks("policy", "text")[1])
    for words in commands("policy"):
        said = fleet.terminal.type(*words)
        assert said.status == 0, (words, said.out, said.err)
        if words == ["policy", "list"]:
            assert "large-jobs-need-admins" in said.out
    assert fleet.terminal.type("policy", "list").out == ""


def test_every_way_in_is_judged_and_the_refusal_names_the_policy(fleet: Fleet) -> None:
    at = fleet.terminal
    [job] = fleet.submit(JOB)
    cron = JOB.replace("{name: big", "{name: nightly, schedule: {cron: '0 2 * * *'}")
    assert at.type("submit", "-f", "-", stdin=cron).status == 0
    at.type("cancel", job)
    fleet.ends(job)
    Path("p.cedar").write_text(EVERYTHING + LARGE)
    assert at.type("policy", "apply", "p.cedar").out == "applied 2 policies of 1 file\n"
    ways = [
        at.type("submit", "-f", "-", stdin=JOB),
        at.type("plan", "-f", "-", stdin=JOB),
        at.type("retry", job),
        at.type("submit", "-f", "-", stdin=f"{JOB}\n---\n{JOB.replace('big', 'two')}"),
        at.type("submit", "-f", "-", stdin=cron),
    ]
    assert [REFUSAL in said.err for said in ways] == [True] * 5, ways
    assert all(said.status for said in ways)
    # The cron was created before the policy; its run is judged now.
    run = at.type("cron", "run-now", "nightly")
    assert REFUSAL in run.err
    batch = fleet.client.submit_all(
        [{"command": "true"}, {"command": "true", "gang_size": 9, "resources": {"gpu": 1}}]
    )
    assert [item.error is None for item in batch.results] == [True, False]
    small = batch.results[0].job
    assert small is not None
    story = at.type("events", small.id).out
    assert "permitted by everything" in story


def test_a_forbidden_change_of_a_queue_or_worker_and_a_forbidden_cancel(fleet: Fleet) -> None:
    at = fleet.terminal
    [job] = fleet.submit(JOB)
    forbid = (
        '@id("frozen") forbid (principal, action in [Action::"CancelJob",'
        ' Action::"ManageQueue", Action::"ManageWorker"], resource);'
    )
    Path("p.cedar").write_text(EVERYTHING + forbid)
    at.type("policy", "apply", "p.cedar")
    said = at.type("queue", "set", "train", "--weight", "2")
    assert "policy frozen forbids ManageQueue on queue train for local" in said.err
    said = at.type("cordon", "w-1")
    assert "policy frozen forbids ManageWorker on worker w-1 for local" in said.err
    said = at.type("cancel", job)
    assert "policy frozen forbids CancelJob on a job of namespace default for local" in said.err
    assert at.type("policy", "apply", "--none").status == 0
    assert at.type("cancel", job).status == 0


def test_policies_with_a_mistake_are_refused_and_nothing_changes(fleet: Fleet) -> None:
    at = fleet.terminal
    Path("good.cedar").write_text(EVERYTHING)
    Path("bad.cedar").write_text(LARGE.replace("gpus", "gpu"))
    at.type("policy", "apply", "good.cedar")
    said = at.type("policy", "apply", "bad.cedar", "good.cedar")
    assert "bad.cedar: policy no-large-jobs" in said.err
    assert "attribute `gpu` on entity type `Job` not found" in said.err
    Path("tests.yaml").write_text(
        "tests: [{name: ada, principal: {name: ada, namespaces: [ml]}, expect: deny,"
        " policy: strict, manage_secret: ml/hub}]"
    )
    said = at.type("policy", "test", "tests.yaml")
    assert said.status == 1
    assert said.out.splitlines()[-1] == (
        "ada: expected deny by policy strict, the answer is allow: permitted by everything"
    )
    Path("empty.cedar").write_text("// nothing yet")
    assert "every request would be refused" in at.type("policy", "apply", "empty.cedar").err
    assert [each["id"] for each in at.type("policy", "list", "--json").json["policies"]] == [
        "everything"
    ]
