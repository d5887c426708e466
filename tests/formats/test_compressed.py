"""Compressed files are read whole, and never beyond the limit."""

import gzip
import lzma
from pathlib import Path

import pytest

from bursar.formats.file_text import plain_name, read_bytes
from bursar.model.errors import InputError


def _packed(folder: Path, suffix: str, data: bytes) -> Path:
    path = folder / f"workflow.json{suffix}"
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path.write_bytes(pack(data))
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_file_reads_the_same_however_it_is_packed(tmp_path: Path, suffix: str) -> None:
    """The ending decides how a file is unpacked."""
    path = _packed(tmp_path, suffix, b"content" * 1000)

    assert read_bytes(path) == b"content" * 1000
    assert plain_name(path) == "workflow.json"


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path, suffix: str) -> None:
    """A bomb of a few bytes must not fill the memory."""
    path = _packed(tmp_path, suffix, b"\0" * 1_000_001)

    with pytest.raises(InputError, match=r"larger than 1,000,000 bytes"):
        read_bytes(path, limit=1_000_000)
    assert len(read_bytes(path, limit=1_000_001)) == 1_000_001


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "nothing like it"])
def test_a_damaged_file_is_refused(tmp_path: Path, suffix: str, damage: str) -> None:
    """A stream cut short must not pass for a shorter file."""
    path = _packed(tmp_path, suffix, bytes(range(256)) * 100)
    data = bytearray(path.read_bytes())
    match damage:
        case "cut":
            data = data[: len(data) // 2]
        case "flipped":
            data[len(data) // 2] ^= 0xFF
        case _:
            data = bytearray(b"{}")
    path.write_bytes(data)

    with pytest.raises(InputError) as caught:
        read_bytes(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The message says which file, and why."""
    with pytest.raises(InputError, match=r"absent\.json: cannot be read: No such file"):
        read_bytes(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_bytes(tmp_path)
