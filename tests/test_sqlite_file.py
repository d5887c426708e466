"""What an error of SQLite says of the disk."""

import errno
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from bursar.sqlite_file import is_full


@pytest.mark.parametrize(
    ("error", "number", "expected"),
    [
        (apsw.FullError(), 0, True),
        (apsw.IOError(), errno.ENOSPC, True),
        (apsw.CantOpenError(), errno.EMFILE, True),
        (apsw.IOError(), errno.EIO, False),
        # The number is of an earlier statement: this one failed for another reason.
        (apsw.ConstraintError(), errno.ENOSPC, False),
        (apsw.CorruptError(), errno.ENOSPC, False),
    ],
)
def test_only_a_failure_of_the_system_counts_as_a_full_disk(
    error: apsw.Error, number: int, expected: bool
) -> None:
    connection: Any = SimpleNamespace(system_errno=number)
    assert is_full(connection, error) is expected
