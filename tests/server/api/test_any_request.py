"""Any request: drawn from the server's own OpenAPI, with values that break parsers, none makes the server fail."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import waterclock as wc
from waterclock.server.access import Policy
from waterclock.server.api import deliveries
from waterclock.server.app import create_app

pytestmark = pytest.mark.one_database

TEXTS = st.one_of(
    st.sampled_from(
        [
            *("t", "orders", "1", "", "0", "-1", "1_0", "9" * 30, "-" + "9" * 19, "1e999", "nan", "null", "a" * 300),
            *("2026-07-01T12:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00-23:59", "now", "latest", "1d"),
            *("99999999999999999999d", "0s", "-5s", "1.5h", "0:0:0", "9:9:9", "-1:0:0", "9" * 20 + ":0:0"),
            *("* * * * *", "0 0 31 2 *", "*/0 * * * *", "1-99999999 * * * *", "@daily", "59 23 29 2 1#9"),
            *("priority > 0", "(" * 200, "a = " * 50, "NOT " * 300 + "TRUE", "priority LIKE '%%'", "1=1; DROP TABLE x"),
            *("\x00", "\x1b[2J", "\u202e", "<script>", "'\";--", "%", "_", "../..", "\ud83d\ude00", "e\u0301"),
        ]
    ),
    st.text(max_size=30),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.one_of(st.integers(-1, 3), st.integers(-(2**70), 2**70)),
    "boolean": st.booleans(),
    "string": TEXTS,
}


def schema_values(schema: dict[str, Any], known: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw values that mostly have a schema's form."""
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema or "enum" in schema:
        forms = [schema_values(each, known) for each in schema.get("anyOf", ())]
        return st.one_of(*forms) if forms else st.sampled_from(schema["enum"])
    if "properties" in schema:
        needed = schema.get("required", [])
        parts = {name: schema_values(each, known) for name, each in schema["properties"].items()}
        return st.fixed_dictionaries(
            {name: parts[name] for name in needed},
            optional={name: part for name, part in parts.items() if name not in needed},
        )
    if schema.get("type") == "array":
        return st.lists(schema_values(schema.get("items", {}), known), min_size=1, max_size=3)
    return _PLAIN.get(schema.get("type", ""), VALUES)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[TestClient]:
    """A server with a topic, a table with groups, and one of each thing in them."""
    with (
        wc.connect(f"sqlite:///{tmp_path_factory.mktemp('any')}/waterclock.db") as database,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(deliveries, "LONGEST_WAIT", 1_000_000)  # a longer wait is refused
        database.create_topic("t").append([wc.Message("press", "load", 1, receive_time=2)])
        database.topic("t").subscribe("t")
        for name in ("t", "orders"):
            table = database.create_table(name, payload="json", groups="sequenced", dead_letter=f"{name}_dead")
            table.put({"a": 1}, group="t")
            table.schedule("t", cron="@daily", payload="x")
        app = create_app(database, Policy())
        with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as opened:
            yield opened


REMOVING = {("delete", "/api/topics/{topic}"), ("delete", "/api/tables/{table}")}


def operations(client: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    """List the operations of the OpenAPI; not streams, which do not end, nor Arrow, nor what removes the objects."""
    paths = client.get("/openapi.json").json()["paths"]
    return [
        (method.upper(), path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if not path.endswith(("/stream", "/arrow")) and (method, path) not in REMOVING
    ]


@given(data=st.data())
def test_no_request_of_the_interface_makes_the_server_fail(client: TestClient, data: st.DataObject) -> None:
    known = client.get("/openapi.json").json()["components"]["schemas"]
    method, path, operation = data.draw(st.sampled_from(operations(client)))
    query: dict[str, Any] = {}
    for each in operation.get("parameters", []):
        drawn = schema_values(each["schema"], known)
        value = data.draw(st.one_of(st.just("t"), drawn) if each["in"] == "path" else drawn)
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", quote(str(value).encode("utf-8", "replace"), safe="") or "t")
        elif value is not None and (each["required"] or data.draw(st.booleans())):
            query[each["name"]] = str(value).encode("utf-8", "replace")
    body: Any = None
    for form in operation.get("requestBody", {}).get("content", {}).values():
        body = data.draw(schema_values(form["schema"], known))
    try:
        answer = client.request(method, path, params=query, json=body)
    except (ValueError, UnicodeEncodeError):  # the client does not send it: NaN, a lone surrogate
        return
    assert answer.status_code < 500, (method, path, query, body, answer.text)


PAGES = (
    *(
        "/",
        "/tables",
        "/tables/t",
        "/tables/t/act/{}",
        "/tables/t/groups",
        "/tables/t/groups/{}",
        "/tables/t/messages/{}",
    ),
    *("/topics", "/topics/t", "/topics/t/batches", "/ingest", "/pipelines", "/workers", "/schedules", "/system", "/{}"),
)
QUERIES = (
    *("id", "group", "state", "header", "where", "text", "error", "show", "by", "since", "until", "to", "slide"),
    *("subscription", "payload", "window", "max_delay", "max_lead", "gap", "on_conflict", "max_skew", "source"),
    *("batch_length", "timeout", "begin", "length", "done", "rows", "format"),
)


@given(
    path=st.sampled_from(PAGES),
    part=st.one_of(st.sampled_from(["retry", "cancel", "purge", "redrive", "release", "skip", "close", "1"]), TEXTS),
    query=st.dictionaries(st.sampled_from(QUERIES), TEXTS, max_size=6),
)
def test_no_query_makes_a_page_fail(client: TestClient, path: str, part: str, query: dict[str, str]) -> None:
    safe = {name: value.encode("utf-8", "replace") for name, value in query.items()}
    answer = client.get(
        path.format(quote(part.encode("utf-8", "replace"), safe="")), params=safe, headers={"accept": "text/html"}
    )
    assert answer.status_code < 500, answer.text
    assert "<script>" not in answer.text.replace("<script src", "")
    assert "\x1b" not in answer.text
