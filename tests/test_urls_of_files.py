"""Of the URLs of stores nothing secret is shown: not in errors, not in names, not in what libraries say."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import fsspec.core
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock._support.urls import text_without_secrets, without_secrets
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.topics.store import roots
from waterclock.topics.store.ledger_files import LedgerFiles

SHAPES = {
    "s3://key:secret@bucket/x?endpoint_override=h:9&scheme=http": "s3://bucket/x",
    "s3://bucket/x": "s3://bucket/x",
    "s3://bucket": "s3://bucket",
    "s3://key:sec%2Fret@bucket/x/y": "s3://bucket/x/y",
    "s3://key:sec/ret@bucket/x": "s3://bucket/x",
    "s3://key:sec?ret@bucket/x?y=secret": "s3://bucket/x",
    "s3://key:secret@bucket/user@home/x": "s3://bucket/user@home/x",
    "s3://bucket/user@home/x": "s3://bucket/user@home/x",
    "s3://bucket/x#secret": "s3://bucket/x",
    "s3://key:secret": "s3://key",
    "S3A://key:secret@bucket": "S3A://bucket",
    "gs://anonymous@bucket/x?access_token=secret": "gs://bucket/x",
    "abfs://container@account.dfs.core.windows.net/x?sas_token=secret": "abfs://container@account.dfs.core.windows.net/x",
    "abfss://account:secret@container/x": "abfss://container/x",
    "hdfs://user@namenode:8020/x?replication=3": "hdfs://user@namenode:8020/x",
    "hdfs://namenode:8020/x@y": "hdfs://namenode:8020/x@y",
    "ftp://user:secret@host:21/x": "ftp://host:21/x",
    "sftp://user:se:cr:et@host/x": "sftp://host/x",
    "https://user:secret@[::1]:8080/x": "https://[::1]:8080/x",
    "http://[::1]:8080/x": "http://[::1]:8080/x",
    "memory://x/y": "memory://x/y",
    "postgresql+psycopg://user:secret@host:5432/db?password=secret": "postgresql+psycopg://host:5432/db",
    "sqlite:///factory.db": "sqlite:///factory.db",
    "/data/a?b#c@d:e": "/data/a?b#c@d:e",
    "factory-ledgers/": "factory-ledgers/",
}


@pytest.mark.parametrize("url", SHAPES)
def test_a_url_is_shown_without_its_secrets(url: str) -> None:
    assert without_secrets(url) == SHAPES[url]
    assert without_secrets(SHAPES[url]) == SHAPES[url]


@given(
    st.sampled_from(["s3", "gs", "abfs", "sftp", "postgresql+psycopg"]),
    st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="/?#@[]:"), min_size=4),
    st.sampled_from(["", "/", "?", "/x?", ":"]),
)
def test_no_secret_stays_for_any_characters_in_it(scheme: str, secret: str, odd: str) -> None:
    secret = f"Q{secret}{odd}{secret}Q"
    for url in (f"{scheme}://k-y:{secret}@place/x", f"{scheme}://place/x?token={secret}"):
        assert secret not in without_secrets(url)
        assert without_secrets(url).startswith(f"{scheme}://place/x")


@pytest.mark.parametrize(
    "text",
    [
        "Cannot parse URI: 's3://key:s3cr3t@bucket/x?token=t0k3n' due to syntax error",
        "no access with s3cr3t for bucket",
        "GET https://bucket.host/x?token=t0k3n failed",
        "cannot open s3a://key:s3cr3t@bucket/x",
    ],
)
def test_texts_of_libraries_lose_the_secrets_of_the_url_that_they_were_handed(text: str) -> None:
    shown = text_without_secrets(text, "s3://key:s3cr3t@bucket/x?token=t0k3n")
    assert "s3cr3t" not in shown
    assert "t0k3n" not in shown


@pytest.mark.parametrize("root", [shape for shape in SHAPES if "secret" in shape])
def test_no_text_about_a_store_holds_a_secret(
    root: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(f"cannot open {root}: it is wrong")

    monkeypatch.setattr(roots, "fs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=refuse)))
    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    store = LedgerFiles(root, identity="0" * 32)
    texts = [repr(store), store.name("x"), store.place]
    for use in (store.marker, store.check, lambda: store.open("x"), lambda: store.size("x"), lambda: store.delete("x")):
        with pytest.raises((UnavailableError, InvalidArgumentError)) as refused:
            use()
        error: BaseException | None = refused.value
        texts.append(str(error))
        logging.getLogger("test").warning("%s", error)
    assert not any("secret" in text for text in texts)
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("root", "said", "remedy"),
    [
        (
            "abfs://c@a.dfs.core.windows.net/x",
            pa.ArrowException("Failed to get token from DefaultAzureCredential."),
            "az",
        ),
        ("abfss://c@a.dfs.core.windows.net/x", pa.ArrowException("Azure4Core11Credentials23Authentication…"), "az"),
        ("gs://bucket/x", OSError("Could not create a OAuth2 access token to authenticate the request."), "gcloud"),
    ],
)
def test_a_store_without_credentials_is_refused_before_a_file_is_opened(
    root: str, said: Exception, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_: str) -> None:
        raise said

    store = SimpleNamespace(get_file_info=look)  # opening a file of Azure would end the process
    monkeypatch.setattr(roots, "fs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=lambda _: (store, "x"))))
    with pytest.raises(InvalidArgumentError, match=rf"^ledgers: no credentials found for '[^\n]*'{remedy} [^\n]*$"):
        LedgerFiles(root, identity="0" * 32).marker()


def test_google_is_asked_with_more_patience_when_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: str) -> None:
        raise OSError("Retry policy exhausted")

    asked: list[str] = []

    def from_uri(url: str) -> tuple[object, str]:
        asked.append(url)
        return SimpleNamespace(get_file_info=look), "bucket/x"

    monkeypatch.setattr(roots, "fs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=from_uri)))
    roots.opened.__wrapped__("gs://bucket/x?anonymous=true")
    assert [url.rpartition("=")[2] for url in asked] == ["5", "30"]


@pytest.mark.parametrize(
    ("root", "shown"),
    [
        ("s3:/KEY:SECRET@bucket", "s3:/***@bucket"),
        ("s3:/SECRET@bucket", "s3:/***@bucket"),
        ("s3:KEY:SECRET@bucket/x", "s3:***@bucket/x"),
        ("s3:bucket/x", "s3:bucket/x"),
        ("KEY:SECRET@bucket/x", "KEY:***@bucket/x"),
        ("gs:bucket?access_token=SECRET", "gs:bucket"),
        ("https:/account.blob.core.windows.net/c?sv=1&sig=SECRET", "https:/account.blob.core.windows.net/c"),
        ("dbfs:/x?token=SECRET", "dbfs:/x"),
    ],
)
def test_a_mistyped_root_is_refused_without_its_secret(root: str, shown: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        roots.absolute(root)
    assert str(refused.value).startswith(f"ledgers must be a URL or a folder, got {shown!r}")


@pytest.mark.parametrize("root", ["file://SECRET@h/x", "file://u:SECRET@h/x", "file://h/x?sig=SECRET"])
def test_a_file_url_of_another_machine_is_refused_without_its_secret(root: str) -> None:
    with pytest.raises(InvalidArgumentError, match="got 'file://h/x'") as refused:
        roots.absolute(root)
    assert "SECRET" not in str(refused.value)
