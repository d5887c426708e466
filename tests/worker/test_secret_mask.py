"""Values of secrets in what a task prints."""

import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from bursar.worker.output_capture import OutputCapture
from bursar.worker.secret_mask import SecretMask

# Few letters, so that values overlap, repeat and begin with one another.
texts = st.text("ab*", max_size=40).map(str.encode)
values = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), min_size=1, max_size=4)


@given(texts, values, st.lists(st.integers(0, 40)))
@example(b"ababb", [b"ab", b"abb"], [2])
@example(b"abab", [b"abab", b"b"], [1, 2, 3])
def test_the_cuts_of_a_stream_change_nothing(
    text: bytes, secrets: list[bytes], cuts: list[int]
) -> None:
    """A value is found wherever the stream was cut, as in the whole stream at once."""
    longest_first = sorted(secrets, key=len, reverse=True)
    whole = re.sub(b"|".join(map(re.escape, longest_first)), b"***", text)
    mask, bounds = SecretMask(secrets), sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[a:b] for a, b in zip([0, *bounds], [*bounds, len(text)], strict=True)]

    assert b"".join([*map(mask.feed, pieces), mask.end()]) == whole


def test_a_long_stream_is_masked_before_it_reaches_the_disk(tmp_path: Path) -> None:
    """Also where the value lies across two reads of the pipe."""
    import os
    import threading

    capture = OutputCapture(str(tmp_path), 100)
    capture.mask = SecretMask([b"hush-hush"])
    text = (b"x" * 65532 + b"hush-hush") * 3
    writer = threading.Thread(target=lambda: os.write(capture.writer, text))
    writer.start()
    while writer.is_alive():
        capture.drain()
    content, size = capture.take("log")
    capture.close()

    kept = (tmp_path / "log").read_bytes()
    assert content == b""
    assert kept == (b"x" * 65532 + b"***") * 3
    assert size == len(kept)
