"""The pages in Chromium: no error on the console, accessible, readable at 360 px, dark, and live."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from tests.server.running import served
from tests.support.services import program

import waterclock as wc

pytestmark = pytest.mark.one_database

AXE = Path(__file__).with_name("axe-4.14.1.min.js").read_text()
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
)
LONGEST = 60_000  # ms: a slow machine
START = 1_764_147_600_000_000_000  # 2025-11-26T09:00:00Z
PAGES = (
    "/",
    "/tables",
    "/tables/orders?state=failed",
    "/tables/orders/messages/1?payload=true",
    "/tables/orders/act/cancel",
    "/tables/shipments/groups",
    "/tables/shipments/act/dead-letter",
    "/topics",
    "/topics/telemetry?to=earliest&subscription=billing",
    "/topics/telemetry/batches?window=2s&max_delay=1s",
    "/topics/telemetry/batches?by=rate&source=press",
    "/ingest",
    "/pipelines",
    "/workers",
    "/schedules",
    "/system",
    "/no-such-page",
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database in which something failed, and a group is blocked."""
    url = f"sqlite:///{tmp_path_factory.mktemp('pages') / 'waterclock.db'}"
    with wc.connect(url) as database:
        orders = database.create_table("orders", payload="json", min_backoff="1h", max_backoff="1h", purge_after=0)
        orders.put_many([{"payload": {"number": number}} for number in range(20)])
        for delivery in orders.receive(3, consumer="worker"):
            delivery.nack(error=f"ValueError: card {delivery.id} declined")
        orders.ack([19, 20])
        orders.schedule("nightly", cron="0 3 * * 1-5", payload={})
        shipments = database.create_table("shipments", groups="sequenced", max_attempts=1, on_exhausted="block")
        shipments.put(b"", group="customer 7")
        shipments.receive(1)[0].nack(error="carrier away")
        telemetry = database.create_topic("telemetry")
        for second in range(0, 30, 10):
            times = [START + (second + number) * 10**9 for number in range(10)]
            pairs = [(time, source) for time in times for source in ("press", "oven")]
            telemetry.append([wc.Message(source, "heat", time, receive_time=time + 10**8) for time, source in pairs])
            telemetry.roll()
        telemetry.subscribe("billing")
    return url


@pytest.fixture(scope="module")
def page(url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Page]:
    """One tab of one browser for all tests."""
    with served(url) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=program("chromium", "chromium"),
            args=FLAGS.split(),
            base_url=server.url,
            locale="en-GB",
            timezone_id="Europe/Berlin",
        )
        browser.set_default_timeout(LONGEST)
        expect.set_options(timeout=LONGEST)
        yield browser.pages[0]
        browser.close()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_accessible_and_readable(page: Page, path: str) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    for scheme, width in (("light", 1200), ("dark", 360)):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(path, wait_until="load")
        page.evaluate(AXE)
        found = page.evaluate("axe.run().then(result => result.violations.map(one => [one.id, one.nodes[0].html]))")
        assert found == [], scheme
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [one for one in said if "404" not in one] == []


def test_a_purge_is_previewed_and_failures_are_retried_together(page: Page) -> None:
    page.goto("/tables/orders")
    page.get_by_role("link", name="Purge").click()
    expect(page.get_by_role("heading", name="Purge 2 messages")).to_be_visible()
    page.get_by_role("button", name="Purge 2 messages").click()
    expect(page.get_by_role("status").filter(has_text="Messages purged: 2")).to_be_visible()
    page.get_by_role("link", name="Retry all").click()
    page.get_by_role("button", name="Retry 3 messages").click()
    expect(page.get_by_role("status").filter(has_text="Messages retried: 3")).to_be_visible()


def test_a_seek_is_previewed_and_confirmed_by_a_typed_and_by_a_dragged_time(page: Page) -> None:
    page.goto("/topics/telemetry")
    page.get_by_role("link", name="Seek billing").click()
    page.get_by_label("Time with offset").fill("2025-11-26T09:00:20Z")
    page.get_by_label("Compared with").select_option("event_time")
    page.get_by_role("button", name="Preview", exact=True).click()
    preview = page.get_by_role("region", name="Preview")
    expect(preview).to_contain_text("20 unread after it")
    preview.get_by_role("button", name="Move billing").click()
    expect(page.get_by_role("status").filter(has_text="with 20 unread")).to_be_visible()
    page.get_by_role("link", name="Seek billing").click()
    page.get_by_role("slider").fill("0")
    page.get_by_role("button", name="Preview this time").click()
    expect(preview).to_contain_text("are delivered again")
    preview.get_by_role("button", name="Move billing").click()
    expect(page.get_by_role("status").filter(has_text="with 60 unread")).to_be_visible()


def test_the_timeline_zooms_by_keyboard_and_names_why_batches_closed(page: Page) -> None:
    page.goto("/topics/telemetry/batches?window=2s&max_delay=1s&since=2025-11-26T09:00:00Z&until=2025-11-26T09:00:30Z")
    closed = page.get_by_text("cut by conflict:")
    before = closed.inner_text()
    page.keyboard.press("+")
    page.wait_for_url("**since=2025-11-26T09%3A00%3A07*")
    expect(closed).not_to_have_text(before)


def test_a_page_refreshes_itself_until_it_is_paused(page: Page, url: str) -> None:
    page.goto("/tables/shipments/groups?show=blocked")
    expect(page.get_by_role("row", name="customer 8")).to_have_count(0)
    with wc.connect(url) as database:
        table = database.table("shipments")
        table.put(b"", group="customer 8")
        table.receive(1)[0].nack(error="carrier away")
    expect(page.get_by_role("row", name="customer 8")).to_have_count(1)
    page.get_by_role("button", name="Pause refresh").click()
    expect(page.get_by_role("button", name="Resume refresh")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Resume refresh").click()


def test_times_are_in_the_readers_zone_and_the_keyboard_reaches_the_content(page: Page) -> None:
    page.goto("/system")
    assert page.locator("#zone").inner_text() == "Europe/Berlin"
    shown = page.locator("dd time")
    assert "UTC" not in shown.inner_text()
    assert (shown.get_attribute("title") or "").endswith(" ns")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
