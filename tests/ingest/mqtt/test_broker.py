"""URLs and options of brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.ingest.mqtt.broker import PASSWORD_VARIABLE, USERNAME_VARIABLE, Broker


@pytest.mark.parametrize(
    ("url", "host", "port", "is_encrypted"),
    [
        ("mqtt://gateway", "gateway", 1883, False),
        ("mqtts://gateway/", "gateway", 8883, True),
        ("mqtt://[::1]:1884", "::1", 1884, False),
    ],
)
def test_a_url_says_where_a_broker_is(url: str, host: str, port: int, is_encrypted: bool) -> None:
    broker = Broker.checked(url)
    assert (broker.host, broker.port, broker.is_encrypted) == (host, port, is_encrypted)


def test_a_host_of_colons_is_shown_in_brackets() -> None:
    assert Broker.checked("mqtt://[::1]").place == "[::1]:1883"


@pytest.mark.parametrize(
    "url",
    [
        "gateway",
        "http://gateway",
        "mqtt://",
        "mqtt://a/b",
        "mqtt://a?b=1",
        "mqtt://a:99999",
        "mqtt://a:0",
        "mqtt://u:secret@",
    ],
)
def test_another_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="url must be mqtt://HOST") as caught:
        Broker.checked(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version": "4"}, "version must be 5 or 3.1.1, got '4'"),
        ({"client_id": ""}, "client_id must have 1 to 200 characters"),
        ({"certificate": "c"}, "certificate and key must both be given"),
        ({"ca": "ca.pem"}, "mqtts://"),
        ({"password": "a", "password_file": "b"}, "must not both be given"),
        ({"receive_maximum": 20_001}, "receive_maximum must be between 1 and 20000, got 20001"),
        ({"connections": 0}, "connections must be between 1 and 64, got 0"),
        ({"keepalive": "1d"}, "keepalive"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        Broker.checked("mqtt://gateway", **options)


def test_user_and_password_come_from_url_file_or_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(USERNAME_VARIABLE, "eve")
    monkeypatch.setenv(PASSWORD_VARIABLE, "word")
    broker = Broker.checked("mqtt://gateway")
    assert (broker.username, broker.current_password()) == ("eve", "word")
    broker = Broker.checked("mqtt://adam:a%20b@gateway")
    assert (broker.username, broker.current_password()) == ("adam", "a b")
    assert "a b" not in repr(broker)
    file = tmp_path / "password"
    broker = Broker.checked("mqtt://gateway", password_file=str(file))
    with pytest.raises(UnavailableError, match="cannot read password_file"):
        broker.current_password()
    for password in ("first", "second"):  # it is read at each connect
        file.write_text(f"{password}\n")
        assert broker.current_password() == password


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    broker = Broker.checked("mqtts://gateway", ca=str(tmp_path / "ca.pem"))
    with pytest.raises(UnavailableError, match=r"cannot read the certificates .*ca\.pem"):
        broker.tls_context()
