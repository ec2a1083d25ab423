"""The pages of the cluster as a whole: overview, cluster, queues."""

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.pages import accessibility_problems, open_page
from tests.integration.api.serving import Running
from tests.integration.api.test_overview import a_cluster, placed, submit

pytestmark = pytest.mark.asyncio(loop_scope="session")


#: Sets `window.redrawn` to whether a canvas has changed two frames after the theme.
NOTE_REDRAW = """canvas => {
    const before = canvas.toDataURL();
    const frame = () => new Promise(requestAnimationFrame);
    window.redrawn = new Promise(resolve => {
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", async () => {
            await frame();
            await frame();
            resolve(canvas.toDataURL() !== before);
        });
    });
}"""


async def a_busy_cluster(cluster: Running) -> None:
    """Two workers of 4 GPUs: one gang of 6 is placed, one of 8 is pending."""
    await a_cluster(cluster)
    for name, queue in (
        ("ml", {"quota": {"gpu": 2}, "limit": {"gpu": 7}}),
        ("ml-train", {"parent": "ml"}),
    ):
        await cluster.call("PUT", f"/queues/{name}", queue)
    await placed(cluster, await submit(cluster, "train", 6, queue="ml-train"))
    await submit(cluster, "large", 8, queue="ml")
    await cluster.until(lambda each: len(each.gangs) == 2)


async def fits(page: Page) -> bool:
    wide: int = await page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return wide <= 0


async def test_the_overview_answers_what_is_used_and_why_jobs_wait(
    cluster: Running, page: Page
) -> None:
    await a_busy_cluster(cluster)
    await open_page(page, cluster.url, "overview", "Overview")
    await expect(page.get_by_text("6 / 8")).to_be_visible()
    row = page.get_by_role("row", name="ml/large")
    await expect(row).to_contain_text("the gang needs 8 GPUs, the limit of queue ml is 7")
    await page.get_by_role("combobox", name="Over").select_option("day")
    await page.get_by_role("img", name="over the last day").wait_for()
    assert page.url.endswith("#/overview?span=day")
    assert not await accessibility_problems(page)
    # What happens shows without a reload, and nothing moves that did not change.
    before = await page.get_by_role("heading", name="Queues").bounding_box()
    await cluster.call("POST", "/workers/w-1/cordon?reason=fans")
    await page.get_by_text("1 cordoned").wait_for()
    assert await page.get_by_role("heading", name="Queues").bounding_box() == before
    # The chart has times of the day, also of another day.
    await page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=1))
    await page.reload()
    await page.get_by_role("img", name="over the last day").wait_for()
    times = await page.locator(".lineplot .x span").all_text_contents()
    assert len(times) > 1
    assert all(re.fullmatch(r"\d\d:\d\d", time) for time in times)


async def test_the_cluster_is_a_map_of_gpus_that_names_jobs_on_hover(
    cluster: Running, page: Page
) -> None:
    await a_busy_cluster(cluster)
    await open_page(page, cluster.url, "cluster", "Cluster")
    canvas = page.get_by_role("img", name="r0: 2 workers, 6 of 8 GPUs in use")
    await canvas.wait_for()
    await canvas.hover(position={"x": 112, "y": 9})
    await expect(page.locator(".tooltip")).to_contain_text("ml/train, task")
    # The map is drawn again when the theme of the system changes.
    await canvas.evaluate(NOTE_REDRAW)
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate("window.redrawn")
    # The first GPU has the colour of its job, the last one of the second worker is free.
    await page.get_by_role("combobox", name="Group by").select_option("-")
    await page.get_by_role("img", name="all workers").wait_for()
    assert "group=-" in page.url
    await page.get_by_role("combobox", name="As").select_option("table")
    await expect(page.get_by_role("row", name="w-0")).to_contain_text("4 / 4")
    assert not await accessibility_problems(page)


async def test_a_weight_is_tried_out_before_it_is_set(cluster: Running, page: Page) -> None:
    await a_busy_cluster(cluster)
    await open_page(page, cluster.url, "queues", "Queues")
    await expect(page.get_by_role("row", name="ml-train")).to_contain_text("6")
    weight = page.get_by_label("Weight of queue ml", exact=True)
    await weight.fill("5")
    # What streams in meanwhile does not take away what the user types.
    async with page.expect_response("**/shares"):
        await submit(cluster, "meanwhile", 1, 0, queue="ml")
    await page.evaluate("new Promise(drawn => setTimeout(() => requestAnimationFrame(drawn), 50))")
    await expect(weight).to_have_value("5")
    await weight.blur()
    await page.get_by_role("heading", name="If queue ml had weight 5").wait_for()
    await page.get_by_text("The next plan would start and evict the same jobs.").wait_for()
    assert not await accessibility_problems(page)
    assert (await cluster.call("GET", "/queues/ml")).body["weight"] == 1
    await page.get_by_role("button", name="Set weight 5 …").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Later plans can start and evict more.")
    # The message goes away after a while: it is waited for from before the click.
    await asyncio.gather(
        page.get_by_text("Queue ml has weight 5.").wait_for(),
        dialog.get_by_role("button", name="Set weight").click(),
    )
    queue = (await cluster.call("GET", "/queues/ml")).body
    assert (queue["weight"], queue["quota"], queue["limit"]) == (5, {"gpu": 2}, {"gpu": 7})


async def test_pages_of_the_cluster_fit_a_phone_in_both_themes(
    cluster: Running, page: Page
) -> None:
    await a_busy_cluster(cluster)
    await page.set_viewport_size({"width": 360, "height": 800})
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        for address, heading in (
            ("overview", "Overview"),
            ("cluster", "Cluster"),
            ("cluster?view=table", "Cluster"),
            ("queues", "Queues"),
        ):
            await open_page(page, cluster.url, address, heading)
            assert await fits(page), (theme, address)
            assert not await accessibility_problems(page), (theme, address)


async def test_a_cron_is_listed_paused_and_run_now(cluster: Running, page: Page) -> None:
    schedule = {"cron": "0 2 29 2 *", "timezone": "Europe/Zurich"}
    job = {"name": "nightly", "schedule": schedule, "roles": {"w": {"command": "true"}}}
    await cluster.call("POST", "/jobs", job)
    await open_page(page, cluster.url, "jobs", "Jobs")
    row = page.get_by_role("row", name="default/nightly 0 2 29 2 * Europe/Zurich")
    dialog = page.get_by_role("dialog")
    await row.get_by_role("button", name="Run now").click()
    await dialog.get_by_role("button", name="Run now").click()
    await page.get_by_role("link", name="default/nightly-").wait_for()
    await row.get_by_role("button", name="Pause").click()
    await dialog.get_by_role("button", name="Pause").click()
    await expect(row).to_contain_text("paused")
    assert not await accessibility_problems(page)
