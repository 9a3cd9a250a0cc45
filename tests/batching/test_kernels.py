"""Kernels: few rows run interpreted, and the interpreted and compiled forms have equal results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import PropertyMock, patch
from warnings import catch_warnings, simplefilter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.columns import NAMES, described_columns, laid_out
from tests.batching.rate.traffic import calls, options
from tests.support.imports import loaded_after
from tests.support.kernel_forms import interpreting

from waterclock.batching import kernels
from waterclock.batching.event_time import columns as event_time
from waterclock.batching.event_time.replay import ReplayRange, synchronised
from waterclock.batching.event_time.rule import CONFLICTS, EventTimeRule
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_column.many import RateAwareMany
from waterclock.batching.rate.by_column.many_state import to_arrays
from waterclock.batching.rate.rule import RateRule
from waterclock.errors import UnavailableError
from waterclock.message import Message
from waterclock.time import MAX_NS, MIN_NS

pytestmark = pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning")

_KERNELS = kernels.KERNELS[:2]
ROOT = Path(__file__).parents[2]


def same_in_both_forms(run: Callable[[], Any]) -> None:
    for name in _KERNELS:
        kernels.Kernel(name).compiled  # noqa: B018  # from here on, calls run compiled
    expected = run()
    refused = PropertyMock(side_effect=AssertionError("the compiled form was called"))
    with interpreting(), patch.object(kernels.Kernel, "compiled", refused), catch_warnings():
        simplefilter("error", RuntimeWarning)  # of overflows
        np.testing.assert_equal(run(), expected)


@st.composite
def rows(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    """Draw sources, streams, event times and receive times of few rows, also near the bounds of time."""
    base = draw(st.sampled_from([MIN_NS, -20, 0, 10**18, MAX_NS - 80]))
    places = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 60), st.integers(-3, 9))
    drawn = np.array(draw(st.lists(places, max_size=120)), np.int64).reshape(-1, 4)
    receive_times = base + np.maximum(drawn[:, 2] + drawn[:, 3], 0)
    return drawn[:, 0].astype(np.int32), drawn[:, 1].astype(np.int32), base + drawn[:, 2], receive_times


lengths = st.builds(
    EventTimeRule,
    window=st.integers(1, 30),
    max_delay=st.integers(0, 9),
    max_lead=st.integers(0, 3),
    on_conflict=st.sampled_from(sorted(CONFLICTS)),
    gap=st.none() | st.integers(1, 9),
    boundaries=st.sampled_from(((), ("3",))),
)

STREAM_NAMES = pa.array(["0", "1", "2", "3"])


@given(rows(), lengths, st.none() | st.integers(0, 70))
def test_event_time_kernel_is_the_same_in_both_forms(
    arrays: tuple[Any, Any, Any, Any], rule: EventTimeRule, passed: int | None
) -> None:
    sources, streams, event_times, receive_times = arrays
    now = None if passed is None else int(receive_times.min(initial=MAX_NS - 70)) + passed

    def run() -> Any:
        clocks = np.full(3, MIN_NS)
        readings = event_time.read_clocks(sources, receive_times, clocks)
        verdicts = event_time.find_late_and_future(event_times, readings, rule)
        found = event_time.assign_arrays(*arrays, rule, stream_names=STREAM_NAMES, now=now)
        judged = event_time.assign_judged(sources, streams, event_times, verdicts, rule, clocks, STREAM_NAMES)
        return [clocks, readings, *found[:-1], *judged[:-1]]

    same_in_both_forms(run)


@given(rows(), lengths, st.integers(0, 30), st.integers(0, 30))
def test_synchronised_sources_are_the_same_in_both_forms(
    arrays: tuple[Any, Any, Any, Any], rule: EventTimeRule, begin: int, since: int
) -> None:
    first = int(arrays[2].min(initial=0))
    span = ReplayRange(first + begin + since, first + begin + since + 40, first + begin)
    same_in_both_forms(lambda: synchronised(*arrays, rule, span, STREAM_NAMES))


@given(calls(), options)
def test_rate_kernel_is_the_same_in_both_forms(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    def run() -> Any:
        columns = RateAwareColumns(NAMES, **chosen)
        first = described_columns(columns.add(*laid_out(arrivals, NAMES)))
        nothing = np.empty(0, np.int64)
        return first, columns.state(), described_columns(columns.add(nothing, nothing, flush=True))

    same_in_both_forms(run)


@given(st.lists(calls(largest=20), min_size=1, max_size=3), st.booleans())
def test_rates_of_many_sources_are_the_same_in_both_forms(arrivals: list[list[list[Message]]], flush: bool) -> None:
    laid = [laid_out(of_source, NAMES) for of_source in arrivals]
    counts = [len(times) for _, times, _ in laid]
    streams, times = (np.concatenate([source[k] for source in laid]).astype(np.int64) for k in (0, 1))
    begins = np.zeros(len(times) + 1, np.bool_)
    for first, (_, _, bounds) in zip(np.cumsum([0, *counts]), laid, strict=False):
        begins[first + np.asarray(bounds)[:-1]] = True

    def run() -> Any:
        many = RateAwareMany(RateRule.checked("1s", None))
        keys = np.repeat(np.arange(len(laid)), counts) * len(NAMES) + streams
        places = many.admit(len(laid), keys, len(NAMES), lambda of: np.ones(len(of), np.bool_))
        tracks = many.pairs[places, 2]
        found = many.add(tracks, times, np.cumsum([0, *counts]), begins[: len(times)], np.full(len(laid), flush))
        return [*found, *to_arrays(many)]

    same_in_both_forms(run)


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    """Compile what `make compiled` would have compiled."""
    if any(kernels.Kernel(name).shipped is None for name in kernels.KERNELS):
        command = [sys.executable, "scripts/compile-kernels"]
        run = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        if run.returncode:
            pytest.fail(run.stderr, pytrace=False)


@pytest.mark.parametrize("libraries", [True, False])
def test_few_rows_do_not_import_numba(libraries: bool) -> None:
    code = f"""
from waterclock.batching.kernels import Kernel
if not {libraries}:
    Kernel.shipped = None
import pyarrow as pa
import waterclock as wc
table = pa.table({{"source": ["x"], "stream": ["a"], "event_time": [1], "receive_time": [1]}})
assert wc.assign_batches(table, window=5, max_delay=2)["batch_start"].to_pylist() == [1]
columns = wc.RateAwareColumns(["a"])
columns = wc.RateAwareColumns.restore(columns.state())
columns.add([0, 0], [1, 2], flush=True)
"""
    loaded = loaded_after(code)
    assert "waterclock" in loaded
    assert "numba" not in loaded


def test_more_rows_of_a_process_run_compiled() -> None:
    compiled = SimpleNamespace(read_clocks=lambda *_: "compiled")
    few = np.zeros(4, np.uint32), np.arange(4), np.full(1, MIN_NS), np.zeros(4, np.int64)
    with interpreting(rows=10), patch.object(kernels.Kernel, "compiled", PropertyMock(return_value=compiled)):
        kernel = kernels.Kernel(_KERNELS[0])
        assert [kernel.call("read_clocks", 4, *few) for _ in range(3)] == [None, None, "compiled"]
    assert few[3].tolist() == [3, 3, 3, 3]  # the clock stays where the first call left it


def test_rows_for_which_pauses_make_up_do_not_count() -> None:
    few = np.zeros(4, np.uint32), np.arange(4), np.full(1, MIN_NS), np.zeros(4, np.int64)
    refused = PropertyMock(side_effect=AssertionError("the compiled form was called"))
    with interpreting(rows=10), patch.object(kernels.Kernel, "compiled", refused):
        kernel = kernels.Kernel(_KERNELS[0])
        for _ in range(9):
            kernel.call("read_clocks", 4, *few)
            kernels.note_pause()


def test_many_rows_run_the_library_without_numba() -> None:
    code = """
import numpy as np
import waterclock as wc
from waterclock.batching import kernels
times = np.arange(60_000) * 10**9
columns = wc.RateAwareColumns(["a"])
for first in range(0, len(times), 1_000):
    columns.add(np.zeros(1_000, np.int32), times[first : first + 1_000])
assert all(kernel.rows == 0 for kernel in kernels._kernels)
"""
    assert "numba" not in loaded_after(code)


@pytest.mark.parametrize("suffixes", [(".py",), (".py", ".so")])
def test_kernels_run_from_an_archive(suffixes: tuple[str, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for file in (ROOT / "src").rglob("*"):
            if file.suffix in suffixes:
                archive.write(file, file.relative_to(ROOT / "src"))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path / "package.zip")!r})
from waterclock.batching.event_time import columns
assert ".zip" in columns.__file__
assert columns.KERNEL.shipped is None
columns.read_clocks(columns.np.zeros(4, "i4"), columns.np.arange(4), columns.np.zeros(1, "i8"))
assert columns.KERNEL.rows == 4
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_library_of_another_source_is_not_used() -> None:
    kernel = kernels.Kernel(_KERNELS[0])
    kernel.load_shipped()
    with patch.object(kernel.interpreted, "FUTURE", 77), pytest.raises(UnavailableError, match="another version"):
        kernel.load_shipped()
    with patch.object(kernel.interpreted, "FUTURE", 77):
        assert kernel.shipped is None


def test_numba_compiles_to_the_same_results_as_the_library() -> None:
    kernel = kernels.Kernel("waterclock.columnar.batch_bytes_kernel")
    data = np.arange(100, dtype=np.uint8)
    written = []
    for form in (kernel.shipped, import_module(kernel.name)):
        written.append(np.zeros(80, np.uint8))
        form.copy_bytes(data, np.array([90, 5]), np.array([10, 30]), np.array([3, 50]), written[-1])
        form.copy_bits(data & 1, np.array([1, 4]), np.array([9, 17]), np.array([30, 40]), written[-1])
    assert type(form.copy_bytes).__module__.startswith("numba")
    assert written[0].any()
    assert written[0].tobytes() == written[1].tobytes()


@pytest.mark.parametrize("kept", [0, 1000, 20_000, -1])
def test_a_damaged_library_is_refused_instead_of_ending_the_process(kept: int, tmp_path: Path) -> None:
    damaged = tmp_path / "libkernel.so"
    damaged.write_bytes(Path(kernels.Kernel(_KERNELS[0]).library).read_bytes()[:kept])
    code = f"""
from waterclock.batching.kernels import KERNELS, Kernel
Kernel.library = {str(damaged)!r}
try:
    Kernel(KERNELS[0]).load_shipped()
except Exception as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("the compiled library is damaged")


def test_a_library_that_cannot_be_read_is_not_used(tmp_path: Path) -> None:
    with patch.object(kernels.Kernel, "library", str(tmp_path)):
        assert kernels.Kernel(_KERNELS[0]).shipped is None
        with pytest.raises(UnavailableError, match=r"cannot read the compiled library: .*Is a directory"):
            kernels.Kernel(_KERNELS[0]).load_shipped()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy what the kernels are compiled from, without libraries."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("lib*.so", "__pycache__"))
    return tmp_path


@pytest.mark.parametrize(
    ("compiler", "said"), [(None, "no C compiler 'cc' found"), ("#!/bin/sh\nexit 1\n", "the C compiler 'cc' fails")]
)
def test_without_a_compiler_that_works_nothing_is_compiled(clone: Path, compiler: str | None, said: str) -> None:
    if compiler is not None:
        (clone / "cc").write_text(compiler)
        (clone / "cc").chmod(0o755)
    make = shutil.which("make") or pytest.fail("there is no make", pytrace=False)
    command = [make, "--old-file=setup", f"BIN={ROOT}/.venv/bin", f"--makefile={ROOT}/Makefile", "compiled"]
    run = subprocess.run(command, cwd=clone, env={"PATH": str(clone)}, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 0
    assert run.stderr.startswith(f"cannot compile the kernels: {said}")
    assert not list(clone.rglob("lib*"))


def test_settings_for_numba_do_not_keep_kernels_from_being_compiled(clone: Path) -> None:
    libraries = [path.relative_to(ROOT) for path in (ROOT / "src").rglob("lib*.so")]
    missing = next(path for path in libraries if path.name == "libbatch_bytes_kernel.so")
    for path in libraries:
        if path != missing:
            shutil.copy2(ROOT / path, clone / path)
    command = [sys.executable, "scripts/compile-kernels"]
    subprocess.run(command, cwd=clone, env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, check=True)
    assert (clone / missing).exists()


def functions_for_numba(name: str) -> dict[Callable[..., Any], dict[str, Any]]:
    """Return the functions of a kernel that Numba compiles, with its options, without compiling them."""
    found: dict[Callable[..., Any], dict[str, Any]] = {}

    def njit(*given: Any, **options: Any) -> Any:
        def note(function: Callable[..., Any]) -> Callable[..., Any]:
            found[function] = options
            return function

        return note(*given) if given and callable(given[0]) else note

    with patch.object(kernels, "numba_for", lambda _: (njit, kernels.TYPES)), patch.dict(sys.modules):
        for module in [module for module in sys.modules if f"{module}.".startswith(f"{name}.")]:
            del sys.modules[module]
        import_module(name)
    return found


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_code_compiled_together_is_in_one_kernel_and_kept(name: str) -> None:
    # The caches of machine code notice changes in files of the kernel, and in no others.
    functions = functions_for_numba(name)
    called = kernels.Kernel(name).interpreted.njit.signatures
    assert all(f"{function.__module__}.".startswith(f"{name}.") for function in functions)
    assert {function.__name__ for function, options in functions.items() if options.get("cache")} == set(called)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        pytest.param("waterclock.batching.event_time.kernel", "assign", marks=pytest.mark.slow),
        pytest.param("waterclock.batching.rate.by_column.kernel", "run", marks=pytest.mark.slow),
        ("waterclock.columnar.batch_bytes_kernel", "copy_bytes"),
    ],
)
def test_a_second_process_starts_without_compiling(name: str, function: str) -> None:
    import_module(name)
    program = (
        f"from {name} import {function}\n"
        f"print(sum({function}.stats.cache_hits.values()), sum({function}.stats.cache_misses.values()))"
    )
    second = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert second.stdout.split() == ["1", "0"]


def read_clocks(**changed: Any) -> None:
    arguments = {
        "sources": np.zeros(4, np.uint32),
        "receive_times": np.arange(4),
        "clocks": np.zeros(1, np.int64),
        "readings": np.zeros(4, np.int64),
    }
    kernels.Kernel(_KERNELS[0]).shipped.read_clocks(*(arguments | changed).values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"sources": np.zeros(4, np.int32)},
        {"receive_times": np.arange(8)[::2]},
        {"receive_times": np.zeros((4, 1), np.int64)},
        {"receive_times": [0, 1, 2, 3]},
        {"readings": np.frombuffer(bytes(32), np.int64)},
        {"readings": np.frombuffer(bytearray(40), np.uint8)[1:33].view(np.int64)},
    ],
)
def test_a_library_refuses_arrays_that_it_would_misread(wrong: dict[str, Any]) -> None:
    read_clocks()
    with pytest.raises(TypeError, match="read_clocks: argument"):
        read_clocks(**wrong)


def test_an_error_in_a_library_is_the_one_that_numba_raises() -> None:
    rows, times, flags = np.zeros(4, np.uint32), np.zeros(4, np.int64), np.zeros(4, np.uint8)
    numbers = [2**62, 1, 1, 1, 1, 1, False, 1]
    spare = [times, rows, times, rows, np.zeros(6, np.uint32)]
    arguments = [rows, rows, times, times, flags[:0], *numbers, times, times, times, flags, flags, *spare]
    with pytest.raises(ValueError, match="array is too big"):
        kernels.Kernel(_KERNELS[0]).shipped.assign(*arguments)


def test_numba_without_a_writable_folder_is_unavailable_with_the_remedy() -> None:
    failing = patch.object(kernels, "import_module", side_effect=RuntimeError("no locator available"))
    with interpreting(), failing, pytest.raises(UnavailableError, match=r"no locator available.*Set NUMBA_CACHE_DIR"):
        kernels.Kernel(_KERNELS[0]).compiled  # noqa: B018


MADE_UP_KERNEL = {
    "made_up/__init__.py": "",
    "made_up/limits.py": "LIMIT = 2\n",
    "made_up/places.py": "PLACE = 1\n",
    "made_up/kernel/__init__.py": """from made_up import places
from made_up.limits import LIMIT

from .steps import njit, step, types


@njit(types.int64(types.int64), cache=True)
def run(number):
    return step(number) + LIMIT + places.PLACE
""",
    "made_up/kernel/steps.py": """from waterclock.batching.kernels import numba_for

njit, types = numba_for(__name__)


@njit
def step(number):
    return number * 2
""",
}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Write a kernel of two files, and return a function that imports it as a new process would."""
    for name, text in MADE_UP_KERNEL.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kernels, "KERNELS", ("made_up.kernel",))
    monkeypatch.setattr(kernels, "_kernels", [])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget() -> None:
        for name in [name for name in sys.modules if "made_up" in name]:
            del sys.modules[name]

    def imported() -> Any:
        forget()
        return import_module("made_up.kernel")

    yield imported
    forget()


@pytest.mark.parametrize(
    ("file", "number"), [("made_up/kernel/steps.py", "* 2"), ("made_up/limits.py", "2"), ("made_up/places.py", "1")]
)
def test_numba_compiles_again_after_a_change_of_another_file(
    file: str, number: str, made_up: Callable[[], Any], tmp_path: Path
) -> None:
    assert made_up().run(1) == 5
    again = made_up().run
    assert (again(1), sum(again.stats.cache_hits.values())) == (5, 1)
    (tmp_path / file).write_text(MADE_UP_KERNEL[file].replace(number, f"{number} + 1"))
    changed = made_up().run
    assert (changed(1), sum(changed.stats.cache_hits.values())) == (6, 0)


def test_a_library_of_another_source_of_its_package_has_another_fingerprint(
    made_up: Callable[[], Any], tmp_path: Path
) -> None:
    kernel = kernels.Kernel("made_up.kernel")
    before = kernel.fingerprint
    assert kernel.interpreted.run(1) == 5
    assert kernel.library == str(tmp_path / "made_up/libkernel.so")
    (tmp_path / "made_up/kernel/steps.py").write_text(MADE_UP_KERNEL["made_up/kernel/steps.py"] + "\n")
    assert kernels.Kernel("made_up.kernel").fingerprint != before
