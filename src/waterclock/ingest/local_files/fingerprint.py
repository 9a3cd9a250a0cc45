"""Identifies a file by its device and inode, its first bytes, and the last bytes that were read.

An inode alone is not enough, because filesystems reuse it, and a file may be truncated and rewritten. The first bytes
alone are not enough either, because many files begin with the same header. The last bytes that were read distinguish
such files.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import NamedTuple

from waterclock.errors import InvalidArgumentError

HEAD = 1024
"""Bytes at the beginning that are compared, and as many before the position."""

FINGERPRINT_BYTES = 16

_SIGNED = 1 << 63


class FileKey(NamedTuple):
    """Device and inode of a file, as signed 64-bit integers."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileKey:
        """Return the key of a file; InvalidArgumentError for a folder, pipe or device."""
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgumentError("it is not a regular file")
        return cls(_signed(status.st_dev), _signed(status.st_ino))


def fingerprint(descriptor: int, offset: int) -> bytes:
    """Return a hash of the bytes at the beginning of a file, and of those before a position in it."""
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    digest.update(os.pread(descriptor, min(HEAD, offset), 0))
    digest.update(os.pread(descriptor, min(HEAD, offset), max(offset - HEAD, 0)))
    return digest.digest()


def _signed(number: int) -> int:
    return (number + _SIGNED) % (2 * _SIGNED) - _SIGNED
