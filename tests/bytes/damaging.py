"""Reads damaged bytes, many thousands of times, in a process that may die: ``python -m tests.bytes.damaging``.

What it is at stands in a file, where it survives the process. What it found it prints as JSON.
"""

from __future__ import annotations

import json
import mmap
import re
import resource
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.bytes.forms import FORMS, Form
from tests.bytes.mutations import mutated

from waterclock.batching import kernels
from waterclock.errors import WaterclockError

AT = struct.Struct("<qq")
"""The number of a form and of a mutation."""

_MEMORY = 2**32


def damage(form: Form, first: int, count: int, seen: mmap.mmap, number: int) -> dict[str, Any]:
    """Read ``count`` mutations of a form's samples, from the one numbered ``first`` on."""
    known = [form.read(sample) for sample in form.samples]
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(first, first + count):
        AT.pack_into(seen, 0, number, seed)
        data = mutated(form.samples[seed % len(form.samples)], form.samples, seed)
        try:
            found = form.read(data)
        except WaterclockError as error:
            outcomes[type(error).__name__] += 1
            if len(str(error)) > 1100:
                wrong.append(f"{seed}: an error of {len(str(error))} characters")
        except BaseException as error:  # noqa: BLE001  # that is what is looked for
            wrong.append(f"{seed}: {error!r}")
        else:
            outcomes["accepted"] += 1
            if form.guarded and found not in known:
                wrong.append(f"{seed}: read as something else")
    return {"outcomes": outcomes, "wrong": wrong}


def main(place: str, first: str, count: str, *numbers: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernels.INTERPRETED_ROWS = 0  # compiled code could leave the bounds of its arrays; interpreted code could not
    names = list(FORMS)
    found: dict[str, Any] = {}
    with Path(place).open("r+b") as file, mmap.mmap(file.fileno(), AT.size) as seen:
        for number in map(int, numbers):
            form = FORMS[names[number]]()
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            found[names[number]] = damage(form, int(first), int(count), seen, number)
    # Not getrusage(): it counts the process, too, from which this one was started.
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    found["peak"] = int(peak) * 1024
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
