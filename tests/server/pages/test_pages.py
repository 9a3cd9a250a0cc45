"""What every page has in common: HTML and JSON from the same data, forms, signing in, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from tests.server.browsing import BROWSER, form_token, sign_in

import waterclock as wc

pytestmark = pytest.mark.one_database


def test_a_page_and_its_json_have_the_same_data(database: wc.Database, client: TestClient) -> None:
    database.create_table("orders")
    page = client.get("/tables")
    assert page.headers["content-type"].startswith("text/html")
    assert "orders" in page.text
    found = client.get("/tables", headers={"accept": "application/json"}).json()
    assert [one["name"] for one in found["tables"]] == ["orders"]
    assert client.get("/tables?format=json").json() == found


def test_an_empty_page_says_which_command_comes_next(client: TestClient) -> None:
    assert "waterclock table add" in client.get("/tables").text


def test_a_browser_without_a_token_is_sent_to_the_form_and_back(
    database: wc.Database, serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    database.create_table("orders")
    client = serve(require_token=True)
    refused = client.get("/tables?x=1", headers=BROWSER, follow_redirects=False)
    assert (refused.status_code, refused.headers["location"]) == (303, "/login?next=%2Ftables%3Fx%3D1")
    assert client.get("/tables", headers={"accept": "application/json"}).status_code == 401
    answer = sign_in(client, bearer("read table:orders"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/tables")
    page = client.get("/tables")
    assert "orders" in page.text
    assert client.get("/api/me").status_code == 401, "the HTTP interface takes no cookie"
    client.post("/logout", data={"form_token": form_token(page)})
    assert client.get("/tables").status_code == 401


def test_the_cookie_is_strict_and_travels_encrypted_off_this_machine(
    serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    header = bearer("read table:*")
    local = sign_in(serve(require_token=True), header).headers["set-cookie"]
    assert "HttpOnly" in local
    assert "SameSite=strict" in local
    assert "Secure" not in local
    assert "Secure" in sign_in(serve(on_loopback=False), header).headers["set-cookie"]


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "/\n/evil.example", ""]
)
def test_signing_in_leads_to_no_other_site(
    serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]], wanted: str
) -> None:
    assert sign_in(serve(require_token=True), bearer("read table:*"), wanted).headers["location"] == "/"


def test_an_unknown_token_signs_nobody_in(serve: Callable[..., TestClient]) -> None:
    answer = sign_in(serve(require_token=True), {"Authorization": "Bearer wct_x"})
    assert answer.status_code == 401
    assert "unknown or has expired" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_form_of_another_site_is_refused(serve: Callable[..., TestClient]) -> None:
    client = serve(require_token=True)
    assert client.post("/logout").status_code == 400
    assert client.post("/logout", data={"form_token": "0" * 64}).status_code == 400
    page = form_token(client.get("/login"))
    foreign = client.post("/logout", data={"form_token": page}, headers={"sec-fetch-site": "cross-site"})
    assert foreign.status_code == 403


def test_errors_are_pages_for_browsers(client: TestClient) -> None:
    missing = client.get("/no-such-page", headers=BROWSER)
    assert missing.status_code == 404
    assert "<h1>Not found</h1>" in missing.text
    assert client.get("/no-such-page?format=json").json()["error"] == "not_found"
    assert client.get("/api/no-such-path", headers=BROWSER).json()["error"] == "not_found"


def test_static_files_change_their_url_with_their_content(client: TestClient) -> None:
    urls = re.findall(r'(?:href|src)="(/static/[^"]+)"', client.get("/tables").text)
    assert len(urls) == 4
    for url in urls:
        found = client.get(url)
        assert found.status_code == 200
        assert "immutable" in found.headers["cache-control"]
    assert client.get("/static/pages.css").headers["cache-control"] == "no-store"
    assert client.get("/static/..%2fframe.py").status_code == 404


def test_nothing_of_a_page_comes_from_elsewhere_or_is_inline(client: TestClient) -> None:
    text = client.get("/tables").text
    assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//""", text)
    assert not re.search(r"<style|\sstyle=|<script(?![^>]*src=)|\son\w+=", text)


def test_open_pages_are_told_when_to_refresh(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waterclock.server.pages.live.EVERY", 0)
    monkeypatch.setattr("waterclock.server.pages.live._MOST", 2)
    answer = client.get("/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.count("event: refresh\n") == 2
