"""How many bytes somebody holds, between two counts."""

import pytest

from bursar.service.files import file_store
from bursar.service.files.file_store import ByteQuota, DiskQuotas
from bursar.service.interfaces import ServiceError

ONE, OTHER = ByteQuota("one", 100, "files"), ByteQuota("other", 100, "files")


def test_who_was_forgotten_while_it_was_counted_has_no_room_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mark of what was taken in an earlier life in memory is not what is there."""
    monkeypatch.setattr(file_store, "_MOST_USAGES", 1)
    held = DiskQuotas()
    held.counted("one", 0, held.begin_count("one"))
    held.take((ONE,), 100)
    mark = held.begin_count("one")
    held.counted("other", 0, held.begin_count("other"))
    held.counted("one", 100, mark)
    assert held.room((ONE,)) == 0
    with pytest.raises(ServiceError):
        held.take((ONE,), 1)


def test_what_is_taken_while_it_is_counted_is_added() -> None:
    """Whether the count has seen it is not known."""
    held = DiskQuotas()
    held.counted("one", 10, held.begin_count("one"))
    mark = held.begin_count("one")
    held.take((ONE,), 20)
    held.counted("one", 30, mark)
    assert held.room((ONE, OTHER)) == 50
