"""Removes passwords from URLs before they appear in errors, logs, listings, reprs and commands.

`shown` keeps all harmless parts of a database's URL. `without_secrets` keeps only the location of a file store, as the
catalogue stores it. For a malformed URL, both functions hide too much rather than too little. In
``postgres://u:p@ss/word@host``, either ``@`` may end the password, so everything before the last ``@`` is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus

_HIDDEN = "***"
_HARMLESS = {
    "application_name",
    "cache",
    "charset",
    "client_encoding",
    "connect_timeout",
    "dbname",
    "gssencmode",
    "host",
    "immutable",
    "local_infile",
    "mode",
    "nolock",
    "port",
    "read_timeout",
    "sslmode",
    "ssl_disabled",
    "ssl_verify_cert",
    "ssl_verify_identity",
    "target_session_attrs",
    "timeout",
    "unix_socket",
    "uri",
    "user",
    "vfs",
    "write_timeout",
}
"""Names in a URL's query whose values are shown; drivers have too many options to list those with secrets."""

_WITHOUT_SERVER = ("sqlite", "file")
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://(.*)", re.DOTALL)
_OTHER_SCHEME = re.compile(r"([A-Za-z][\w+.-]+):(?![\\/])", re.DOTALL)  # two letters at least: C: is a drive
_DATABASE_FILE = re.compile(r"(?:[A-Za-z]:)?[\w./\\ -]+\.(?:db|db3|sqlite|sqlite3)", re.ASCII | re.IGNORECASE)
_PORT = r"(?::\d{0,5})?"  # more digits may be a password
_HOSTS = re.compile(rf"(?:\[[^\]]*\]|[^:\[\]]*?){_PORT}(?:,(?:\[[^\]]*\]|[^:\[\]]*?){_PORT})*")
_PLAIN_VALUE = re.compile(r"[\w.,:/+ -]*")
_URL_IN_TEXT = re.compile(
    r"""[A-Za-z][\w+.-]*://[^\s'"<>]+"""
    r"""|(?!file:)[A-Za-z][\w+.-]+:/[^\s'"<>@?]*[@?][^\s'"<>]*""",  # one slash: a URL normalised as a path
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"""(?P<name>pass(?:word|wd|phrase)?|pwd|secret|token)(?P<is>['"]?\s*[=:]\s*)(?!(?:YES|NO)\b)"""
    r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,;&'")}\]]+)""",
    re.IGNORECASE | re.DOTALL,
)
_SURELY_NO_WORD = 8
"""Minimum length of a password that is hidden even inside a word."""

# The part before the @ belongs to the place and is not secret: a container, or the user of a cluster.
_PLACE_BEFORE_AT = ("abfs", "abfss", "wasb", "wasbs", "hdfs", "viewfs")
_MISTYPED_ROOT = re.compile(r"(?!file:)([A-Za-z][\w+.-]+:/?)(?!/)(.*)", re.DOTALL | re.IGNORECASE)  # C: is a drive
_SHORTEST_SECRET = 3
_SECRET_OPTION = re.compile(r"secret|key|token|pass|pwd|sig|credential", re.IGNORECASE)


def shown(url: object) -> str:
    """Return a database's URL without its password and other possible secrets.

    Parameters
    ----------
    url
        The URL: a string, valid or not, a SQLAlchemy URL, or anything else.
    """
    text = _text(url)
    match = _SCHEME.match(text)
    if match is None:
        return _shown_without_scheme(text)
    scheme, rest = match.groups()
    has_server = scheme.partition("+")[0].lower() not in _WITHOUT_SERVER
    if rest.startswith("/") and not has_server:
        return f"{scheme}://{_without_query(rest)}"
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    hidden = f"{user}:{_HIDDEN}" if colon else user if has_server or not at else _HIDDEN  # a file has no user
    return f"{scheme}://{hidden}{at}{_without_query(_without_port(place))}"


def redacted(text: object, url: object = "") -> str:
    """Return an error's text without the secrets of a URL.

    Parameters
    ----------
    text
        A driver's message or error; drivers quote URLs, connection strings and parts of them.
    url
        The URL that the driver was given.
    """
    safe, given = str(text), _text(url)
    if given:
        safe = safe.replace(given, shown(url))
    for secret in sorted(_secrets(given), key=len, reverse=True):
        pattern = re.escape(secret)
        safe = re.sub(pattern if len(secret) >= _SURELY_NO_WORD else rf"(?<!\w){pattern}(?!\w)", _HIDDEN, safe)
    safe = _URL_IN_TEXT.sub(lambda match: shown(match[0]), safe)
    return _NAMED.sub(rf"\g<name>\g<is>{_HIDDEN}", safe)


def represented(place: object, fields: Mapping[str, Any]) -> str:
    """Return a repr in which fields named, or ending in, ``url`` and ``ledgers`` are shown without secrets."""
    shows = dict(fields)
    for name, value in fields.items():
        if name.endswith("url") and value is not None:
            shows[name] = shown(value)
        elif name.endswith("ledgers") and isinstance(value, str):
            shows[name] = without_secrets(value)
    return f"{type(place).__name__}({', '.join(f'{name}={value!r}' for name, value in shows.items())})"


def without_secrets(url: str) -> str:
    """Return the URL of a place of files without credentials, query and fragment; a path is unchanged.

    Of a malformed URL with an unquoted secret, rather too much is removed than too little.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _without_secrets_of_mistyped(url)
    before, rest = _split(rest)
    keep = scheme.lower() in _PLACE_BEFORE_AT and before and ":" not in before
    return f"{scheme}://{f'{before}@' if keep else ''}{re.split('[?#]', rest, maxsplit=1)[0]}"


def _without_secrets_of_mistyped(url: str) -> str:
    """Hide secrets of a root without its slashes, such as ``s3:/KEY:SECRET@bucket``; a path is unchanged."""
    match = _MISTYPED_ROOT.match(url)
    if match is None:
        return url
    before, _, place = match[2].rpartition("@")
    return f"{match[1]}{f'{_HIDDEN}@' if before else ''}{re.split('[?#]', place, maxsplit=1)[0]}"


def text_without_secrets(text: str, url: str) -> str:
    """Return a text, such as the error of a library that was given the URL, without its secrets."""
    text = text.replace(url, without_secrets(url))
    for secret in sorted(_secrets_of_root(url), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return _URL_IN_TEXT.sub(lambda found: without_secrets(found[0]), text)


def _text(url: object) -> str:
    render = getattr(url, "render_as_string", None)
    if callable(render):
        return str(render(hide_password=False))
    return url.decode(errors="replace") if isinstance(url, bytes) else str(url)


def _shown_without_scheme(text: str) -> str:
    _, at, place = text.rpartition("@")
    if at:
        return f"{_HIDDEN}@{_without_query(place)}"
    match = _OTHER_SCHEME.match(text)
    if match is not None and match[1].lower() not in _WITHOUT_SERVER:
        return f"{match[1]}:{_HIDDEN}"
    if match is None and not _DATABASE_FILE.fullmatch(text):
        return _HIDDEN if text else ""  # a single word may be a password
    return _NAMED.sub(rf"\g<name>\g<is>{_HIDDEN}", _without_query(text))


def _without_port(place: str) -> str:
    """Hide text in the place of a port that is not one."""
    hosts = re.match(r"[^/?#]*", place)
    if hosts is None or _HOSTS.fullmatch(hosts[0]):
        return place
    return f"{place.partition(':')[0]}:{_HIDDEN}"


def _without_query(place: str) -> str:
    path, mark, query = place.partition("?")
    path = _NAMED.sub(rf"\g<name>\g<is>{_HIDDEN}", path)
    return path + mark + "&".join(map(_shown_pair, query.split("&")))


def _shown_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        return _HIDDEN if name else ""
    return pair if name.lower() in _HARMLESS and _PLAIN_VALUE.fullmatch(value) else f"{name}={_HIDDEN}"


def _secrets(text: str) -> set[str]:
    """Return the secrets of a URL, in every form in which a driver may quote them."""
    match = _SCHEME.match(text)
    rest = text if match is None else match[2]
    found: set[str] = set()
    credentials, at, _ = rest.rpartition("@")
    if at:
        found.add(credentials.partition(":")[2])
        found.add(credentials.partition(":")[2].partition("@")[0])  # where SQLAlchemy ends it
        if match is not None and match[1].partition("+")[0].lower() in _WITHOUT_SERVER and rest[:1] != "/":
            found.add(credentials)
    for pair in rest.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if _shown_pair(pair) != pair and name:
            found.add(value)
    forms = (str, unquote, unquote_plus, quote, quote_plus, lambda text: repr(unquote(text))[1:-1])
    return {form(secret) for secret in found for form in forms} - {"", _HIDDEN}


def _split(rest: str) -> tuple[str, str]:
    """Split the part after the scheme into the credentials before the @, and the place."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    before, at, _ = authority.rpartition("@")
    if at:
        return before, rest[len(before) + 1 :]
    name, colon, port = authority.partition(":")
    if not colon or port.isdigit() or not port or authority.startswith("["):
        return "", rest
    # A secret with a slash or a question mark: the place begins after the last @.
    before, at, place = rest.rpartition("@")
    return (before, place) if at else (rest, name)


def _secrets_of_root(url: str) -> Iterator[str]:
    rest = url.partition("://")[2]
    before, place = _split(rest)
    secrets = [before, *before.split(":")[1:], before.partition(":")[2]]
    query = place.partition("?")[2].partition("#")[0]
    secrets += [query, *(value for name, value in parse_qsl(query) if _SECRET_OPTION.search(name))]
    for secret in secrets:
        for form in (secret, unquote(secret)):
            if len(form) >= _SHORTEST_SECRET:
                yield form
