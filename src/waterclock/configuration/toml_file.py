"""Reads a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from waterclock._support.quoting import quoted
from waterclock.configuration.toml_lines import TomlLines
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError


def read_toml(path: Path) -> tuple[dict[str, Any], TomlLines]:
    """Read a file, with the line of each of its keys.

    Raises `NotFoundError` if it is missing. Raises `UnavailableError` if it cannot be read. Raises
    `InvalidArgumentError` if it is a folder, or not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"no file {quoted(str(path))} found") from None
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} must be UTF-8 text: {error.reason}") from error
    except IsADirectoryError:
        raise InvalidArgumentError(f"{path} is a folder. Pass the path of a file in it") from None
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from error
    try:
        return tomllib.loads(text), TomlLines(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not valid TOML: {error}") from error
