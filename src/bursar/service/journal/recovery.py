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
        Of its records, heads included, bytes.
    dead
        Segment, offsets of its dead records, and offset of the record here that lists them.
    end
        Where the last whole batch ends; 0 when not even the segment's head is whole.
    """

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("I"))
    dead: list[tuple[int, Sequence[int], int]] = field(default_factory=list)
    end: int = 0


def scan_segment(data: bytes, number: int, *, is_last: bool) -> SegmentScan:
    """
    Read and check a whole segment.

    Parameters
    ----------
    is_last
        Whether it is the one that was being written: only there may an end be torn.

    Raises
    ------
    InputError
        When something is wrong that had been durable.
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
    Raises InputError unless what is wrong at an offset can have been torn by a crash.

    Parameters
    ----------
    later
        From where on a good batch shows that all before it had been durable.
    """
    if not is_last or next_batch(data, number, later) is not None:
        raise InputError(
            f"the batch at offset {at} is damaged, and it had been durable; "
            "nothing was changed, expected an undamaged file"
        )
