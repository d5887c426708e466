"""Recovery: reading a segment's records, and finding where a crash tore it."""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from bursar.model.errors import InputError
from bursar.service.journal.record_format import (
    BATCH_HEAD,
    DEAD,
    RECORD_HEAD,
    SEGMENT_HEAD,
    batch_at,
    check_segment_head,
    decode_dead,
    next_batch,
    records_in,
)


@dataclass(slots=True, eq=False)
class SegmentScan:
    """
    Records and dead lists found in a segment.

    Attributes
    ----------
    offsets, sizes
        Offset and size in bytes of each record, heads included.
    dead
        Lists of dead records: number of a segment, offsets there, and offset of the list here.
    end
        Offset at which the last whole batch ends; 0: the segment never became durable.
    """

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("I"))
    dead: list[tuple[int, Sequence[int], int]] = field(default_factory=list)
    end: int = 0


def scan_segment(data: bytes, number: int, *, is_last: bool) -> SegmentScan:
    """
    Return the records in the bytes of a whole segment, after checking every checksum.

    Parameters
    ----------
    data
        All bytes of the segment's file.
    number
        Number in the file's name, which the heads must repeat.
    is_last
        Whether the segment was being written: only there can a crash have torn the end.

    Raises
    ------
    InputError
        When something is damaged that had been durable.
    """
    found = SegmentScan()
    if not check_segment_head(data, number):
        # The head and that of the first batch are written by one call, and torn together.
        _check_torn(data, number, 0, SEGMENT_HEAD + 1, is_last=is_last)
        return found
    view = memoryview(data)
    at = SEGMENT_HEAD
    later = at
    while at < len(data):
        later = at + 1
        batch = batch_at(view, number, at)
        if batch is None:
            break
        size, check = batch
        begin = at + BATCH_HEAD
        later = begin + size  # what a payload holds is no batch
        # One checksum for the whole batch: whatever was torn in it, none of its records counts.
        if begin + size > len(data) or zlib.crc32(view[begin : begin + size]) != check:
            break
        for offset, length, kind in records_in(view, begin, begin + size):
            found.offsets.append(offset)
            found.sizes.append(length)
            if kind == DEAD:
                payload = bytes(view[offset + RECORD_HEAD : offset + length])
                found.dead.append((*decode_dead(payload), offset))
        at = begin + size
    if at < len(data):
        _check_torn(data, number, at, later, is_last=is_last)
    # A segment whose first batch is not whole was never durable: it is as if it had no head.
    found.end = at if at > SEGMENT_HEAD else 0
    return found


def _check_torn(data: bytes, number: int, at: int, later: int, *, is_last: bool) -> None:
    """
    Raise InputError unless the damage at an offset can be the work of a crash.

    Parameters
    ----------
    later
        Offset from which on a good batch shows that everything before had been durable.
    """
    # A batch is begun only after the one before was synced. So damage before a good batch, or in a
    # segment that has a successor, befell data that were acknowledged: cutting it off would lose
    # them in silence.
    if not is_last or next_batch(data, number, later) is not None:
        raise InputError(
            f"the batch at offset {at} is damaged, and it had been durable; "
            "nothing was changed, expected an undamaged file"
        )
