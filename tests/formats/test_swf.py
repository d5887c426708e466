"""Logs in the Standard Workload Format: read whole, cleaned by stated rules, written back."""

import gzip
import lzma
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.formats.trace_files import read_swf, write_swf
from bursar.model.errors import BursarError, InputError
from bursar.model.trace import Trace

LOGS = {
    "swf/CTC-SP2-1996-predictsim.swf.xz": (77_199, 77_199, 338),
    "swf/HPC2N-2002-first-3170.swf.xz": (3_170, 3_145, 240),
    "swf/KTH-SP2-1996-2.1-cln.swf.xz": (28_476, 28_467, 100),
    "swf/KTH-SP2-predictsim-filtered.swf.xz": (28_481, 28_481, 100),
    "swf/LCG-2005-1.swf.gz": (188_041, 187_520, 24_515),
    "swf/NASA-iPSC-1993-3.1-cln.swf.gz": (18_239, 18_066, 128),
    "swf/lublin_256.swf.xz": (10_000, 10_000, 256),
    "reference/predictsim/CTC-SP2__easy_backfill_scheduler_None_None.swf.gz": (77_199, 77_199, 338),
    "reference/predictsim/KTH-SP2__easy_backfill_scheduler_None_None.swf.gz": (28_481, 28_481, 100),
}


def line(**values: object) -> str:
    """A job's line; what is not given is 1."""
    names = ("number", "submit", "wait", "run", "allocated", "cpu", "mem", "requested", "time",
             "rmem", "status", "user", "group", "exe", "queue", "part", "prev",
             "think")  # fmt: skip
    return " ".join(str(values.get(name, 1)) for name in names)


def read(tmp_path: Path, *lines: str, **how: object) -> Trace:
    """These lines as a log."""
    path = tmp_path / "log.swf"
    path.write_text("\n".join(lines) + "\n")
    return read_swf(path, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LOGS)
def test_every_log_is_read(name: str, data: Path) -> None:
    """As many jobs as the log has, less those whose loss is counted."""
    jobs, kept, processors = LOGS[name]

    trace = read_swf(data / name)

    assert len(trace) == kept
    assert len(trace) + sum(f.jobs for f in trace.cleaning if f.dropped) == jobs
    assert trace.max_processors == processors
    assert (np.diff(trace.submit) >= 0).all()
    assert (trace.runtime > 0).all()
    assert (trace.estimate > 0).all()
    assert (trace.processors >= 1).all()


def test_the_columns_are_where_the_format_has_them(tmp_path: Path) -> None:
    """Submit, wait, run, processors, estimate, user; the machine's facts from the header."""
    trace = read(
        tmp_path,
        "; Version: 2.2",
        ";  MaxProcs: 64 (of 70)",
        "; UnixStartTime: 843480031",
        "",
        line(number=7, submit=10.5, wait=3, run=20, allocated=8, requested=9, time=30, user=5)
        + " 99 98",  # more fields than the format has
    )

    assert trace.name == "log"
    assert (trace.max_processors, trace.begin) == (64, 843480031.0)
    columns = (trace.number, trace.submit, trace.wait, trace.runtime, trace.processors,
               trace.estimate, trace.user)  # fmt: skip
    assert [c[0] for c in columns] == [7, 10.5, 3, 20, 9, 30, 5]
    assert read_swf(tmp_path / "log.swf", width="allocated").processors[0] == 8


def test_what_cannot_be_used_is_dropped_and_counted(tmp_path: Path) -> None:
    """Each rule by name, with the first line it met."""
    trace = read(
        tmp_path,
        line(number=1, submit=5, run=0),
        line(number=2, submit=5, run=-1),
        line(number=3, submit=5, requested=-1, allocated=0),
        line(number=4, submit=5, requested=65),
        line(number=5, submit=-1),
        line(number=6, submit=5, status=3),
        line(number=7, submit=9, run=4, time=-1),
        line(number=8, submit=7, run=4, time=2, requested=-1, allocated=6),
        line(number=9, submit=8, wait=-1),
        line(number=10, submit="nan"),
        line(number="1e300"),
        line(number=12, submit=9, requested=2.5, wait=-7, user="inf"),
        processors=64,
    )

    assert trace.number.tolist() == [8, 9, 7, 12]
    assert trace.estimate.tolist() == [2, 1, 4, 1]
    assert trace.processors.tolist() == [6, 1, 1, 3]
    assert trace.user.tolist() == [1, 1, 1, -1]
    assert np.isnan(trace.wait).tolist() == [False, True, False, True]
    assert {(f.reason, f.jobs, f.line, f.dropped) for f in trace.cleaning} == {
        ("a number that is not finite or too large", 2, 10, True),
        ("run time unknown or not positive", 2, 1, True),
        ("number of processors unknown", 1, 3, True),
        ("wider than 64 processors", 1, 4, True),
        ("submit time unknown", 1, 5, True),
        ("part of a job that has a line of its own", 1, 6, True),
        ("no estimate: the run time is taken", 1, 7, False),
        ("ran longer than its estimate", 1, 8, False),
        ("submitted before the job above: sorted", 1, 8, False),
        ("a fraction of a processor: rounded up", 1, 12, False),
        ("a recorded wait that cannot be: unknown", 1, 12, False),
    }


@pytest.mark.parametrize(
    ("content", "where", "message"),
    [
        (b"", "log.swf", "no job"),
        (b"; only a header\n", "log.swf", "no job"),
        (b"1 2 3\n", "log.swf:1", "expected 18 numbers, got 3"),
        (line().encode() + b"\n" + line(run="fast").encode(), "log.swf:2", "run time): expected a"),
        (line().encode()[:-6], "log.swf:1", "expected 18 numbers, got 15"),
        (b"\x7fELF\x00\x01\n", "log.swf:1", "not a text"),
        (b"1 " * 100_000, "log.swf:1", "not a text"),
        (line(run=0).encode(), "log.swf", "none of its 1 jobs can be used: run time"),
    ],
)
def test_what_is_no_log_is_refused_at_its_line(
    tmp_path: Path, content: bytes, where: str, message: str
) -> None:
    """One line: where, what, and what was expected."""
    path = tmp_path / "log.swf"
    path.write_bytes(content)

    with pytest.raises(InputError) as caught:
        read_swf(path)
    assert caught.value.where.endswith(where)
    assert message in caught.value.message


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_compressed_logs_are_read_and_damage_is_said(tmp_path: Path, suffix: str) -> None:
    """Also one that was cut off in the middle."""
    text = "\n".join(line(number=i, submit=i) for i in range(2000)).encode()
    packed = gzip.compress(text) if suffix == ".gz" else lzma.compress(text)
    path = tmp_path / f"log.swf{suffix}"

    path.write_bytes(packed)
    assert len(read_swf(path)) == 2000
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="damaged"):
        read_swf(path)
    path.write_bytes(b"plain text")
    with pytest.raises(InputError, match="damaged"):
        read_swf(path)


NUMBER = st.one_of(st.integers(1, 10**6).map(float), st.floats(0.001, 1e6, allow_nan=False))


@given(
    jobs=st.lists(
        st.tuples(
            NUMBER, st.one_of(st.just(math.nan), NUMBER), NUMBER, NUMBER, st.integers(1, 512)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[float, float, float, float, int]]
) -> None:
    """To the last digit; unknown stays unknown."""
    path = tmp_path_factory.mktemp("swf") / "log.swf"
    submit, wait, runtime, estimate, width = (np.array(c) for c in zip(*jobs, strict=True))
    order = np.argsort(submit, kind="stable")
    before = Trace(
        name="log",
        number=np.arange(1, len(jobs) + 1),
        submit=submit[order],
        wait=wait[order],
        runtime=runtime[order],
        estimate=estimate[order],
        processors=width[order],
        user=np.full(len(jobs), 3),
        max_processors=512,
        begin=1000.0,
    )

    write_swf(path, before, header=["of a test"])
    after = read_swf(path)

    for name in ("number", "submit", "wait", "runtime", "estimate", "processors", "user"):
        assert np.array_equal(getattr(before, name), getattr(after, name), equal_nan=True), name
    assert (after.max_processors, after.begin) == (512, 1000.0)
    assert after.header[0] == "of a test"


def test_a_log_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """Nothing half-written."""
    trace = read(tmp_path, line())
    with pytest.raises(BursarError, match="cannot be written"):
        write_swf(tmp_path / "missing" / "log.swf", trace)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_log_is_written_compressed_when_its_name_says_so(tmp_path: Path, suffix: str) -> None:
    """What is written is what the reader expects behind that name."""
    trace = read(tmp_path, line(number=7))

    write_swf(tmp_path / f"new.swf{suffix}", trace)

    assert (tmp_path / f"new.swf{suffix}").read_bytes()[:2] in (b"\x1f\x8b", b"\xfd7")
    assert read_swf(tmp_path / f"new.swf{suffix}").number.tolist() == [7]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_header_goes_with_the_log(tmp_path: Path) -> None:
    """Thanks are carried on, facts stated once, and a header line stays one line."""
    trace = read(tmp_path, "; MaxJobs: 9", "; MaxProcs: 8", "; Acknowledge: A. Donor", line())

    write_swf(tmp_path / "new.swf", trace, status=np.array([5]), header=["two\nlines"])

    text = (tmp_path / "new.swf").read_text().splitlines()
    assert text[:3] == ["; two lines", "; MaxProcs: 8", "; Acknowledge: A. Donor"]
    assert text[3].split()[10] == "5"


@pytest.mark.parametrize("fact", ["inf", "nan", "1e300", "-1", "many"])
def test_facts_that_cannot_be_are_unknown(tmp_path: Path, fact: str) -> None:
    """A header is a comment; the machine's size is then told otherwise."""
    trace = read(
        tmp_path, f"; MaxProcs: {fact}", "; MaxNodes: 4", f"; UnixStartTime: {fact}", line()
    )

    assert (trace.max_processors, trace.begin) == (4, None)


def slowly(rows: list[list[float]], limit: int) -> list[tuple[float, ...]]:
    """What the rules leave of these lines, one line after the other."""
    jobs = []
    for number, submit, run, allocated, requested, time in rows:
        width = requested if requested > 0 else allocated
        if submit < 0 or run <= 0 or width <= 0 or width > limit:
            continue
        jobs.append((number, submit, run, width, time if time > 0 else run))
    return sorted(jobs, key=lambda job: job[1])


VALUE = st.sampled_from([-1, 0, 1, 2, 5, 8, 9, 0.5, 3.25])
WHOLE = st.integers(-1, 9)


@given(rows=st.lists(st.tuples(VALUE, VALUE, WHOLE, WHOLE, VALUE), min_size=1, max_size=15))
def test_the_rules_are_those_of_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, ...]]
) -> None:
    """The same jobs in the same order, and every other one is counted."""
    path = tmp_path_factory.mktemp("swf") / "log.swf"
    names = ("submit", "run", "allocated", "requested", "time")
    table = [[float(i), *row] for i, row in enumerate(rows)]
    path.write_text(
        "".join(
            line(number=i, **dict(zip(names, row, strict=True))) + "\n"
            for i, row in enumerate(rows)
        )
    )
    expected = slowly(table, 8)

    if not expected:
        with pytest.raises(InputError, match="can be used"):
            read_swf(path, processors=8)
        return
    trace = read_swf(path, processors=8)
    columns = (trace.number, trace.submit, trace.runtime, trace.processors, trace.estimate)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == expected
    assert len(trace) + sum(f.jobs for f in trace.cleaning if f.dropped) == len(rows)
