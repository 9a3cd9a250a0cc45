"""Opens the root of a ledger store: converts a folder or URL to a filesystem and a path, with limited waiting times."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from waterclock._support.urls import text_without_secrets, without_secrets
from waterclock.errors import InvalidArgumentError, UnavailableError

CONNECT_TIMEOUT = 3.0
"""Seconds in which an object store has to take a connection, unless the URL has ``connect_timeout``."""

REQUEST_TIMEOUT = 10.0
"""Seconds for which an object store may be silent in a request, unless the URL has ``request_timeout``."""

ATTEMPTS = 3
"""Maximum attempts of a request to S3."""

RETRY_LIMIT = 30.0
"""Seconds for which a request to Google's store is repeated, unless the URL has ``retry_limit_seconds``."""

CREDENTIALS_LIMIT = 5.0
"""Seconds for which a request to Google's store is repeated that only checks for credentials."""

_OTHER_SPELLINGS = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_OF_PYARROW = ("s3", "gs", "abfs", "abfss", "hdfs", "viewfs")
_OF_AZURE = ("abfs", "abfss")
_WITH_BUCKETS = ("s3", "gs", "abfs", "abfss")
_SCHEMES = {"s3": "s3", "gcs": "gs", "abfs": "abfs"}
_MISTYPED = re.compile(r"(?!file:)([A-Za-z][\w+.-]+):(/|.*[@?])?", re.DOTALL | re.IGNORECASE)  # C: is a drive
_TIMEOUTS = ("connect_timeout", "request_timeout")
_S3_TEXTS = ("scheme", "endpoint_override", "tls_ca_file_path")
_S3_SWITCHES = ("allow_delayed_open", "allow_bucket_creation", "allow_bucket_deletion", "force_virtual_addressing")


def absolute(root: str) -> str:
    """Convert a root to a form that is independent of the working directory: an absolute path, or a URL."""
    if not root.strip():
        raise InvalidArgumentError(f"ledgers must be a folder or a URL such as s3://bucket/folder, got {root!r}")
    scheme, separator, rest = root.partition("://")
    if separator and scheme.lower() != "file":
        scheme = _OTHER_SPELLINGS.get(scheme.lower(), scheme.lower())
        if scheme in _WITH_BUCKETS and not rest.strip("/"):
            raise InvalidArgumentError(f"ledgers must name a bucket, as in {scheme}://bucket/folder, got {root!r}")
        return f"{scheme}://{rest}"
    found = _MISTYPED.match(root)
    if found and (found[2] or found[1].lower() in (*_OF_PYARROW, *_OTHER_SPELLINGS)):
        remedy = "Pass the folder /dbfs/… or /Volumes/…" if found[1].lower() == "dbfs" else "A URL has two slashes"
        raise InvalidArgumentError(
            f"ledgers must be a URL or a folder, got {without_secrets(root)!r}. {remedy}. For a folder, write ./ before"
            " its name"
        )
    path = Path(_path_of_file_url(root) if root.lower().startswith("file:/") else root).expanduser()
    # A link is kept, since its target may change; only ".." must be resolved along it.
    return str(path.resolve() if ".." in path.parts else path.absolute())


def shown(root: str, filesystem: fs.FileSystem | None) -> str:
    """Return a root without credentials and options, safe to show and store."""
    if filesystem is None:
        return without_secrets(root).rstrip("/")
    scheme = _SCHEMES.get(filesystem.type_name)
    return f"{scheme}://{root}" if scheme else root


def wrapped(filesystem: Any) -> fs.FileSystem:
    """Take a filesystem of pyarrow or of fsspec.

    Raises `InvalidArgumentError` if it is neither.
    """
    if isinstance(filesystem, fs.FileSystem):
        return filesystem
    if not (hasattr(filesystem, "protocol") and hasattr(filesystem, "cat_file")):
        raise InvalidArgumentError(
            "filesystem must be a pyarrow.fs.FileSystem or an fsspec.AbstractFileSystem, got a"
            f" {type(filesystem).__name__}"
        )
    if type(filesystem).__name__ == "LocalFileSystem":
        return fs.LocalFileSystem()  # which makes files durable
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


@lru_cache(maxsize=64)
def opened(root: str) -> tuple[fs.FileSystem, str]:
    """Open the filesystem of an absolute root; return it and the path on it. Cached per process, with its connections.

    Raises `InvalidArgumentError` if pyarrow and fsspec do not know the root's filesystem, or its library is not
    installed. Raises `UnavailableError` if the store had to be contacted, and could not be reached.
    """
    scheme, separator, _ = root.partition("://")
    if not separator:
        return fs.LocalFileSystem(), root
    try:
        if scheme in _OF_PYARROW:
            return _of_pyarrow(root, scheme)
    except pa.ArrowNotImplementedError:
        pass  # this pyarrow was built without it
    except InvalidArgumentError:
        raise
    # From None, here and below: errors of libraries may quote the root with its secrets.
    except (pa.ArrowInvalid, ValueError) as error:
        raise InvalidArgumentError(
            "ledgers must be a folder or a URL such as s3://bucket/folder, got"
            f" {without_secrets(root)!r}: {first_line(error, root)}"
        ) from None
    except OSError as error:
        if "libjvm" in str(error) or "libhdfs" in str(error):
            raise InvalidArgumentError(
                f"cannot use ledgers {without_secrets(root)!r} without Java and Hadoop's libhdfs. Install both, and set"
                " JAVA_HOME and HADOOP_HOME"
            ) from None
        raise UnavailableError(f"cannot reach {without_secrets(root)}: {first_line(error, root)}") from None
    return _of_fsspec(root, scheme)


def first_line(error: BaseException, root: str) -> str:
    """Return the first line of a library's error, without the secrets of the root."""
    return (text_without_secrets(str(error), root).splitlines() or [type(error).__name__])[0].strip()


def _path_of_file_url(url: str) -> str:
    try:
        return fs.LocalFileSystem.from_uri(url)[1]
    except (pa.ArrowInvalid, OSError) as error:
        # From None: pyarrow quotes the URL, which may hold a password.
        raise InvalidArgumentError(
            f"ledgers must be a URL such as file:///folder, got {without_secrets(url)!r}: {first_line(error, url)}"
        ) from None


def _of_pyarrow(root: str, scheme: str) -> tuple[fs.FileSystem, str]:
    if scheme == "s3":
        return _s3(root)
    if scheme == "gs":
        return _google(root)
    return _azure(root) if scheme in _OF_AZURE else fs.FileSystem.from_uri(root)


def _s3(root: str) -> tuple[fs.FileSystem, str]:
    parts = urlsplit(root)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    timeouts = {name: float(options.pop(name)) for name in _TIMEOUTS if name in options}
    plain, base = fs.FileSystem.from_uri(urlunsplit(parts._replace(query=urlencode(options))))
    if set(options) - {"region", *_S3_TEXTS, *_S3_SWITCHES}:
        return plain, base  # options that only a URL has; Amazon's default timeouts then apply
    given: dict[str, Any] = {name: options[name] for name in _S3_TEXTS if name in options}
    given |= {name: options[name].lower() in ("true", "1") for name in _S3_SWITCHES if name in options}
    if parts.username:
        given |= {"access_key": unquote(parts.username), "secret_key": unquote(parts.password or "")}
    filesystem = fs.S3FileSystem(
        **given,
        region=plain.region,
        connect_timeout=timeouts.get("connect_timeout", CONNECT_TIMEOUT),
        request_timeout=timeouts.get("request_timeout", REQUEST_TIMEOUT),
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )
    return filesystem, base


def _azure(root: str) -> tuple[fs.FileSystem, str]:
    """Open a container of Azure and look there once: without credentials, opening a file later aborts the process."""
    filesystem, base = fs.FileSystem.from_uri(root)
    try:
        filesystem.get_file_info(base)
    except pa.ArrowException as error:  # Azure's library does not raise an OSError about credentials
        if "Credential" in str(error):
            remedy = "Sign in with 'az login', set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or put a"
            raise _without_credentials(root, f"{remedy} sas_token into the URL") from None
        raise UnavailableError(f"cannot reach {without_secrets(root)}: {first_line(error, root)}") from None
    return filesystem, base


def _google(root: str) -> tuple[fs.FileSystem, str]:
    """Open a bucket of Google; missing credentials would otherwise be noticed only after the timeout of requests."""
    if "retry_limit_seconds=" in root:
        return fs.FileSystem.from_uri(root)
    option = f"{root}{'&' if '?' in root else '?'}retry_limit_seconds="
    hasty, base = fs.FileSystem.from_uri(f"{option}{CREDENTIALS_LIMIT:g}")
    try:
        hasty.get_file_info(base)
    except OSError as error:
        if "access token" in str(error):
            remedy = "Run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS"
            raise _without_credentials(root, remedy) from None
        # Other errors may go away on a retry.
    return fs.FileSystem.from_uri(f"{option}{RETRY_LIMIT:g}")


def _without_credentials(root: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"ledgers: no credentials found for {without_secrets(root)!r}. {remedy}")


def _of_fsspec(root: str, scheme: str) -> tuple[fs.FileSystem, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415  # its users have it, others do not need it
    except ImportError:
        raise InvalidArgumentError(
            f"ledgers must name a filesystem that pyarrow knows, got {without_secrets(root)!r}. For other filesystems,"
            f" install fsspec and its library for {scheme}"
        ) from None
    try:
        filesystem, base = url_to_fs(root)
    except ImportError as error:
        raise InvalidArgumentError(
            f"cannot use ledgers {without_secrets(root)!r}: a library is not installed: {first_line(error, root)}"
        ) from None
    except ValueError as error:
        raise InvalidArgumentError(
            "ledgers must be a folder or a URL such as s3://bucket/folder, got"
            f" {without_secrets(root)!r}: {first_line(error, root)}"
        ) from None
    except OSError as error:
        raise UnavailableError(f"cannot reach {without_secrets(root)}: {first_line(error, root)}") from None
    return wrapped(filesystem), base
