"""What a browser sends: the form to sign in, and forms of pages."""

from __future__ import annotations

import re

import httpx
from fastapi.testclient import TestClient

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def form_token(page: httpx.Response) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def sign_in(client: TestClient, header: dict[str, str], to: str = "/tables") -> httpx.Response:
    token = header["Authorization"].removeprefix("Bearer ")
    form = {"form_token": form_token(client.get("/login")), "token": token}
    return client.post("/login", params={"next": to}, data=form, follow_redirects=False)


def send_form(client: TestClient, path: str, **fields: str) -> httpx.Response:
    """Load a page, and send its form with other values; hidden fields as they are."""
    page = client.get(path, headers=BROWSER)
    assert page.status_code == 200, page.text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text))
    return client.post(path, data={**hidden, **fields}, headers=BROWSER, follow_redirects=False)
