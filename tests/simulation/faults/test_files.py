"""Files of instances under power cuts and a full disk."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from bursar.remote.messages import FileInfo
from bursar.service.files.instance_files import FileUpload
from bursar_devtools.faults.file_faults import TearingFilesystem, simulate_files

SEEDS = 200
_MANY = 5_000


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(_MANY, marks=pytest.mark.long)])
def test_what_was_acknowledged_is_there_and_whole(seeds: int) -> None:
    """After a power cut at any call, and while the disk is full."""
    assert [(seed, wrong) for seed in range(seeds) if (wrong := simulate_files(seed))] == []


def _content_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = FileUpload.finish

    def finish(self: FileUpload, *, durable: bool = True) -> FileInfo:
        return real(self, durable=False)

    patch.setattr(FileUpload, "finish", finish)


def _names_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = TearingFilesystem.fsync

    def fsync(self: TearingFilesystem, file: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{file}"):
            real(self, file)

    patch.setattr(TearingFilesystem, "fsync", fsync)


def _files_are_written_in_place(patch: pytest.MonkeyPatch) -> None:
    """Each piece is under the file's own name as soon as it is written."""
    real = FileUpload.write

    def write(self: FileUpload, data: bytes) -> None:
        if self.unfinished != self.name:
            os.rename(
                self.unfinished, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory
            )
            self.unfinished = self.name
        real(self, data)

    patch.setattr(FileUpload, "write", write)


def _a_full_disk_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    real = TearingFilesystem.write

    def write(self: TearingFilesystem, file: int, data: Any) -> int:
        try:
            return real(self, file, data)
        except OSError:
            return len(data)

    patch.setattr(TearingFilesystem, "write", write)


@pytest.mark.parametrize(
    "broken",
    [
        _content_is_not_synced,
        _names_are_not_synced,
        _files_are_written_in_place,
        _a_full_disk_is_not_noticed,
    ],
    ids=lambda broken: broken.__name__.strip("_"),
)
def test_a_break_is_noticed(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some seed ends badly with it, and the very same seed ends well without."""
    with monkeypatch.context() as patch:
        broken(patch)
        caught = next((seed for seed in range(SEEDS) if simulate_files(seed)), None)
    assert caught is not None
    assert simulate_files(caught) == ""
