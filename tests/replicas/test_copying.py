"""One copy from one source: whole and verified, or a line that says why not."""

import os
import random
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.replicas.servers import Web, sha256

from bursar.model.errors import InputError
from bursar.replicas.content import (
    CancellationToken,
    CopyCancelled,
    LogicalFileContent,
    SourceFailed,
    TargetFailed,
)
from bursar.replicas.copying import TransferRateLimiter, copy, read_content
from bursar.replicas.parts import PartialFile

BODY = random.Random(1).randbytes(2_000_000)
CUT = 1_500_000
"""Where connections break off; what a client had not read yet by then is lost with it."""

WHOLE = LogicalFileContent(len(BODY), sha256(BODY))


@pytest.fixture
def part(tmp_path: Path) -> Iterator[PartialFile]:
    """An empty one."""
    with PartialFile(tmp_path, "x") as part:
        yield part


def fetch(
    url: str, part: PartialFile, content: LogicalFileContent = WHOLE, **options: object
) -> LogicalFileContent:
    """A copy without a limit, and without much patience."""
    return copy(url, content, part, stop=CancellationToken(), patience=1.0, **options)  # type: ignore[arg-type]


def failure(url: str, part: PartialFile, content: LogicalFileContent = WHOLE) -> SourceFailed:
    """How it fails."""
    with pytest.raises(SourceFailed) as caught:
        fetch(url, part, content)
    return caught.value


def test_a_copy_has_the_bytes_and_tells_size_and_checksum(
    web: Web, part: PartialFile, tmp_path: Path
) -> None:
    """Also when neither was known before; progress ends at the size."""
    told: list[tuple[int, int | None]] = []

    got = fetch(web.put("/x", BODY), part, LogicalFileContent(), on_bytes=lambda *t: told.append(t))
    part.put(tmp_path / "whole")

    assert got == WHOLE
    assert (tmp_path / "whole").read_bytes() == BODY
    assert told[0] == (0, len(BODY))
    assert told[-1] == (len(BODY), len(BODY))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]


def test_a_local_copy_does_the_same(part: PartialFile, tmp_path: Path) -> None:
    """Without a server."""
    (tmp_path / "source").write_bytes(BODY)

    assert fetch(str(tmp_path / "source"), part) == WHOLE
    assert read_content(str(tmp_path / "source"), stop=CancellationToken()) == WHOLE


def test_an_empty_file_is_a_file(web: Web, part: PartialFile) -> None:
    """Of no bytes."""
    assert fetch(web.put("/x", b""), part, LogicalFileContent()) == LogicalFileContent(
        0, sha256(b"")
    )


def test_a_connection_cut_in_the_middle_is_gone_on_with(web: Web, part: PartialFile) -> None:
    """What had come is not sent again."""
    url = web.put("/x", BODY, cuts=[CUT])

    assert failure(url, part).transient
    length = part.length
    assert CUT / 20 < length <= CUT
    assert fetch(url, part) == WHOLE
    assert web.asked == ["", f"bytes={length}-"]
    assert web.sent["/x"] == CUT + len(BODY) - length


def test_a_part_is_gone_on_with_from_another_copy(web: Web, part: PartialFile) -> None:
    """A logical file has one content, and its checksum proves it in the end."""
    failure(web.put("/x", BODY, cuts=[CUT]), part)
    length = part.length

    assert fetch(web.put("/y", BODY), part) == WHOLE
    assert web.sent["/y"] == len(BODY) - length


def test_without_a_checksum_another_copy_begins_anew(web: Web, part: PartialFile) -> None:
    """Nobody could tell whether the halves belong together."""
    failure(web.put("/x", BODY, cuts=[CUT]), part, LogicalFileContent(len(BODY)))

    assert fetch(web.put("/y", BODY), part, LogicalFileContent(len(BODY))) == WHOLE
    assert web.sent["/y"] == len(BODY)


@pytest.mark.parametrize("tagged", [True, False])
def test_a_source_that_changed_meanwhile_begins_anew(
    web: Web, part: PartialFile, tagged: bool
) -> None:
    """Whether the server says so by a tag, or nobody can know."""
    failure(web.put("/x", BODY, cuts=[CUT], tagged=tagged), part, LogicalFileContent())
    other = BODY[::-1]

    got = fetch(web.put("/x", other, tagged=tagged), part, LogicalFileContent())

    assert got == LogicalFileContent(len(other), sha256(other))


def test_a_server_without_ranges_sends_all_again(web: Web, part: PartialFile) -> None:
    """And the file is none the worse."""
    url = web.put("/x", BODY, cuts=[CUT], ranges=False)
    failure(url, part)

    assert fetch(url, part) == WHOLE
    assert web.sent["/x"] == CUT + len(BODY)


def test_what_was_kept_and_proves_wrong_is_not_blamed_on_the_source(
    web: Web, tmp_path: Path
) -> None:
    """A damaged part is found out in the end, and all of it comes again, once."""
    url = web.put("/x", BODY, cuts=[CUT])
    with PartialFile(tmp_path, "x") as part:
        part.take_up(WHOLE)
        failure(url, part)
    (path,) = tmp_path.glob("*.part")
    path.write_bytes(b"!" + path.read_bytes()[1:])

    with PartialFile(tmp_path, "x") as part:
        part.take_up(WHOLE)
        length = part.length
        assert fetch(url, part) == WHOLE
    assert length > CUT / 20
    assert web.asked == ["", f"bytes={length}-", ""]


@pytest.mark.parametrize(
    "wanted", [LogicalFileContent(), LogicalFileContent(7, sha256(b"another"))]
)
def test_a_part_of_something_else_is_not_taken_up(
    web: Web, tmp_path: Path, wanted: LogicalFileContent
) -> None:
    """Nor one that could not be verified."""
    with PartialFile(tmp_path, "x") as part:
        part.take_up(WHOLE)
        failure(web.put("/x", BODY, cuts=[CUT]), part)
    with PartialFile(tmp_path, "x") as part:
        part.take_up(wanted)
        assert part.length == 0


@pytest.mark.parametrize(
    ("page", "reason", "bad", "transient"),
    [
        ({"status": 404}, "is not there", True, False),
        ({"status": 403}, "may not be read (HTTP status 403)", False, False),
        ({"status": 500}, "answers with HTTP status 500", False, True),
        ({"status": 418}, "answers with HTTP status 418", False, False),
        ({"hangs": True}, "does not answer", False, True),
        ({"claimed": 2_400_000}, "has 2400000 bytes, not 2000000", True, False),
        ({"claimed": 200_000}, "has 200000 bytes, not 2000000", True, False),
    ],
)
def test_each_fault_of_a_server_has_its_line(
    web: Web, part: PartialFile, page: dict[str, object], reason: str, bad: bool, transient: bool
) -> None:
    """A copy that lies about its size or is gone is bad; others may be better later."""
    found = failure(web.put("/x", BODY, **page), part)

    assert (found.reason, found.bad, found.transient) == (reason, bad, transient)


def test_a_size_too_large_that_nobody_can_check_ends_early(web: Web, part: PartialFile) -> None:
    """The connection ends before; what is there cannot be all."""
    found = failure(web.put("/x", BODY, claimed=2_400_000), part, LogicalFileContent())

    assert found.transient
    assert not found.bad


def test_a_checksum_mismatch_makes_a_copy_bad_and_leaves_nothing(
    web: Web, part: PartialFile
) -> None:
    """The right size is not enough."""
    found = failure(web.put("/x", BODY[::-1]), part)

    assert found.bad
    assert found.reason.startswith("holds 2000000 bytes, sha256:")
    assert part.length == 0


def test_a_host_that_does_not_exist_or_refuses_is_tried_again(part: PartialFile) -> None:
    """It may be back later."""
    with_nobody = failure("http://127.0.0.1:9/x", part)
    assert (with_nobody.reason, with_nobody.transient) == ("refuses connections", True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "is not there"),
        (Path.mkdir, "is a folder, no file"),
        (os.mkfifo, "is no regular file"),
    ],
)
def test_what_is_no_local_file_is_no_copy(
    part: PartialFile, tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    """And a pipe does not make anybody wait."""
    make(tmp_path / "source")

    found = failure(str(tmp_path / "source"), part)

    assert (found.reason, found.bad) == (reason, True)


def test_a_copy_can_be_stopped_while_a_server_says_nothing(web: Web, part: PartialFile) -> None:
    """At once, not when patience ends."""
    stop = CancellationToken()
    threading.Timer(0.1, stop.ask).start()
    began = time.monotonic()

    with pytest.raises(CopyCancelled):
        copy(web.put("/x", BODY, hangs=True), WHOLE, part, stop=stop, patience=60.0)

    assert time.monotonic() - began < 30


def test_a_copy_can_be_stopped_while_it_waits_for_its_turn(
    tmp_path: Path, part: PartialFile
) -> None:
    """On a slow link."""
    (tmp_path / "source").write_bytes(BODY)
    stop = CancellationToken()
    threading.Timer(0.1, stop.ask).start()

    with pytest.raises(CopyCancelled):
        copy(str(tmp_path / "source"), WHOLE, part, stop=stop, rate=TransferRateLimiter(10.0))


def test_a_disk_that_is_full_is_the_target_s_failure(tmp_path: Path) -> None:
    """A real one: /dev/full, behind the name of the part."""
    (tmp_path / "source").write_bytes(BODY)
    with PartialFile(tmp_path, "x") as part:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, part._file.fileno())
        os.close(full)
        with pytest.raises(TargetFailed, match="cannot be written: No space left on device"):
            fetch(str(tmp_path / "source"), part)


def test_credentials_are_used_and_never_told(
    web: Web, part: PartialFile, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in errors nor in logs, however talkative."""
    caplog.set_level("DEBUG")
    basic = "Basic " + b64encode(b"ann:s3cret").decode()
    web.put("/x?Signature=s1gned", BODY, authorization=basic)
    host = f"127.0.0.1:{web.port}"

    assert fetch(f"http://ann:s3cret@{host}/x?Signature=s1gned", part) == WHOLE
    refused = failure(f"http://ann:wr0ng@{host}/x?Signature=s1gned", part, LogicalFileContent(3))

    assert "401" in refused.reason
    for secret in ("s3cret", "wr0ng", "s1gned"):
        assert secret not in refused.reason + caplog.text + part.origin.url


def test_a_missing_extra_is_named() -> None:
    """With what installs it."""
    import subprocess
    import sys

    program = """
import sys
sys.modules[sys.argv[1]] = None
from bursar.replicas.copying import read_content
from bursar.replicas.content import CancellationToken
try:
    read_content(sys.argv[2], stop=CancellationToken())
except Exception as error:
    print(type(error).__name__, error)
"""
    for module, url, extra in (
        ("paramiko", "ssh://host/x", "ssh"),
        ("s3fs", "s3://bucket/x", "s3"),
    ):
        said = subprocess.run(
            [sys.executable, "-c", program, module, url], capture_output=True, text=True, check=True
        ).stdout
        assert said == (
            f"InputError {extra} copies need {module}\nhint: pip install 'bursar[{extra}]'\n"
        )


def test_a_scheme_that_nothing_can_be_written_by_says_so() -> None:
    """Before anything is read."""
    from bursar.replicas.schemes import open_upload

    with pytest.raises(InputError, match="cannot be written to; a folder, ssh or s3 can"):
        open_upload("http://host/x", 1, 1.0)
