"""The page of a job: its timeline, its logs, why it is pending, and what can be done to it."""

import json
import re
import sys
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from tests.acceptance.fleet import Fleet
from tests.dashboard.pages import HIDE, accessibility_problems, open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: What a hostile task prints: a colour, a title of the terminal, a cleared screen, HTML.
HOSTILE = r"printf '\033[31mred\033]0;owned\007\033[2J <img src=x onerror=hacked=1>\n'"


def gang(fleet: Fleet, name: str, replicas: int, gpus: int) -> str:
    command = ["sh", "-c", f"{HOSTILE}; {fleet.program[2]}"]
    role = {"replicas": replicas, "command": command, "resources": {"gpu": gpus}}
    [job] = fleet.submit(json.dumps({"name": name, "roles": {"worker": role}}))
    return job


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet"), "--starve-after=1ms") as fleet:
        fleet.work("w-1", "--resources=gpu=2,cpu=4")
        fleet.work("w-2", "--resources=gpu=2,cpu=4")
        yield fleet


async def test_the_timeline_shows_which_task_failed_first_and_that_all_run_again(
    fleet: Fleet, page: Page
) -> None:
    job = gang(fleet, "train", 4, 1)
    fleet.runs(job)
    await open_page(page, fleet.url, f"job/{job}", "default/train")
    await expect(page.locator("svg .segment.running")).to_have_count(4)
    fleet.fail(f"{job}.2")
    await expect(page.locator("svg .mark.first-failure")).to_have_count(1)
    title = page.locator("svg .mark.first-failure title")
    assert "task 2: exited with code 1" in (await title.text_content() or "")
    await expect(page.locator("svg .segment.running")).to_have_count(8)
    await expect(page.get_by_text("attempt 2", exact=True)).to_be_visible()
    assert await accessibility_problems(page) == []
    # The output of a task is text, without what a terminal would obey.
    lines = page.locator("pre.log")
    await expect(lines).to_contain_text("red <img src=x onerror=hacked=1>")
    assert "\x1b" not in (await lines.text_content() or "")
    # A hidden tab does not follow the output.
    async with page.expect_event("requestfailed", lambda request: "/logs?" in request.url):
        await page.evaluate(HIDE, True)
    async with page.expect_request("**/logs?*"):
        await page.evaluate(HIDE, False)
    await page.get_by_label("Search").fill("nothing has this")
    await expect(lines).to_have_text("No line contains the text.")
    fleet.end(job)
    await expect(page.locator("main .pill").first).to_have_text("done")
    await expect(page.locator("svg .mark.done")).to_have_count(4)
    # The list of events shows the newest ones.
    hidden = "list => list.scrollHeight - list.clientHeight - list.scrollTop"
    assert await page.locator("ol.events").evaluate(hidden) < 8
    assert await page.locator("ol.events").evaluate("list => list.scrollTop") > 0


async def test_a_pending_job_offers_what_would_let_it_start_and_says_the_consequences(
    fleet: Fleet, page: Page
) -> None:
    running = gang(fleet, "first", 4, 1)
    fleet.runs(running)
    pending = gang(fleet, "second", 4, 1)
    fleet.waits(pending, "NotEnough")
    await open_page(page, fleet.url, f"job/{pending}", "default/second")
    await expect(page.locator(".why")).to_contain_text(": queue default uses 100 % of its share")
    await expect(page.locator(".why")).to_contain_text("Before all queues from ")
    await expect(page.locator(".why")).to_contain_text("default/first runs without a time limit")
    await page.get_by_role("button", name="Raise the priority to").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("evicts 1 gang (default/first)")
    assert await accessibility_problems(page) == []
    await dialog.get_by_role("button", name="Raise the priority").click()
    await expect(page.locator("main .pill").first).to_have_text("running")
    # The field has the focus, and Enter confirms.
    await page.get_by_role("button", name="Priority …").press("Enter")
    await expect(dialog.get_by_label("New priority")).to_be_focused()
    await page.keyboard.type("7")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("priority 7 ·")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(dialog).to_contain_text("Its 4 tasks are stopped together")
    await dialog.get_by_role("button", name="Cancel the job").click()
    await expect(page.locator("main .pill").first).to_have_text("cancelled")
    fleet.end(running)
    fleet.ends(running)


async def test_a_job_is_checked_while_it_is_written_planned_and_submitted(
    fleet: Fleet, page: Page
) -> None:
    await open_page(page, fleet.url, "submit", "Submit a job")
    text = page.get_by_label("Job, as YAML or JSON")
    await text.fill("name: typo\nroles:\n  worker:\n    replica: 2\n    command: 'true'\n")
    await expect(page.get_by_role("alert")).to_contain_text("Line 4: roles.worker.replica")
    await expect(page.locator(".gutter .wrong")).to_have_text("4")
    await expect(page.get_by_role("button", name="Submit", exact=True)).to_be_disabled()
    await text.fill("name: written\nroles:\n  worker:\n    replicas: 2\n    command: 'true'\n")
    await expect(page.get_by_text("the job would start now: 2 tasks on w-")).to_be_visible()
    assert await accessibility_problems(page) == []
    await page.get_by_role("button", name="Submit", exact=True).click()
    await page.get_by_role("heading", name="default/written").wait_for()
    await expect(page.locator("main .pill").first).to_have_text("done")
    await page.get_by_text("Specification").click()
    await page.get_by_role("button", name="Submit again").click()
    await expect(text).to_have_value(re.compile(r"name: written\n"))
    await expect(page.get_by_text("the job would start now")).to_be_visible()


async def test_draining_a_worker_names_the_gangs_that_it_evicts(fleet: Fleet, page: Page) -> None:
    job = gang(fleet, "spread", 4, 1)
    fleet.runs(job)
    await open_page(page, fleet.url, "cluster?view=table", "Cluster")
    row = page.get_by_role("row").filter(has_text="w-2")
    await row.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("It evicts 1 gang with all tasks (default/spread)")
    await dialog.get_by_role("button", name="Drain").click()
    await expect(row.get_by_role("button", name="Uncordon")).to_be_visible()
    await row.get_by_role("button", name="Uncordon").click()
    await dialog.get_by_role("button", name="Uncordon").click()
    await expect(row.get_by_role("button", name="Cordon …", exact=True)).to_be_visible()
    fleet.runs(job)
    fleet.end(job)
    fleet.ends(job)


async def test_an_array_shows_its_elements_and_runs_what_failed_again(
    fleet: Fleet, page: Page
) -> None:
    # Element 3 fails while there is a file.
    flag = fleet.folder / "broken"
    flag.touch()
    role = {"command": f"[ $PHALANX_ARRAY_INDEX != 3 ] || [ ! -e {flag} ]"}
    spec = {"name": "sweep", "array": {"indices": "0-5"}, "max_retries": 0, "roles": {"w": role}}
    [array] = fleet.submit(json.dumps(spec))
    await open_page(page, fleet.url, f"job/{array}", "default/sweep")
    await expect(page.get_by_text("5 done, 1 failed")).to_be_visible()
    await page.get_by_label("Phase").select_option("failed")
    await expect(page.get_by_role("link", name=f"{array}[3]")).to_be_visible()
    await expect(page.get_by_role("link", name=f"{array}[2]")).to_have_count(0)
    assert await accessibility_problems(page) == []
    flag.unlink()
    await page.get_by_role("button", name="Retry what failed").click()
    await page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    await expect(page.locator("main .pill").first).to_have_text("done")
    await page.get_by_label("Phase").select_option("done")
    await page.get_by_role("link", name=f"{array}[3]").click()
    await expect(page.get_by_text("element 3 of an array")).to_be_visible()


async def test_reported_values_are_plotted_beside_the_progress_of_each_task(
    fleet: Fleet, page: Page
) -> None:
    # A value that is not a finite number leaves a gap.
    program = "from phalanx import task\nimport os, time\n" + "\n".join(
        f"task.progress({step}, total=4, loss={loss})"
        for step, loss in ((1, 2.5), (2, 'float("nan")'), (3, 0.5))
    )
    end = f"{fleet.folder}/end-"
    program += f"\nwhile not os.path.exists('{end}' + os.environ['PHALANX_JOB']): time.sleep(0.1)\n"
    role = {"command": [sys.executable, "-c", program]}
    [job] = fleet.submit(json.dumps({"name": "values", "roles": {"worker": role}}))
    await open_page(page, fleet.url, f"job/{job}", "default/values")
    await expect(page.locator(".plot")).to_contain_text("loss 0.5 at step 3")
    await expect(page.locator(".plot path.line")).to_have_count(1)
    await expect(page.get_by_text("step 3 of 4")).to_be_visible()
    assert await accessibility_problems(page) == []
    fleet.end(job)
    fleet.ends(job)
