"""The binary format of segments, batches and records."""

import re
import struct
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from bursar.model.errors import InputError

_MAGIC = b"bursarJ\x01"
_BATCH_MAGIC = b"\xb5batch\xb5\n"

_SEGMENT = struct.Struct("<8sQI")
_RECORD = struct.Struct("<IIB")
_BATCH = struct.Struct("<8sQI")
_PLACE = struct.Struct("<QIB")

_NAME = re.compile(r"journal-(\d{8,})\.log")

SEGMENT_HEAD = _SEGMENT.size
RECORD_HEAD = _RECORD.size
BATCH_HEAD = RECORD_HEAD + _BATCH.size

BATCH = 0
"""Kind of the record that begins a batch."""

DEAD = 255
"""Kind of a record that lists dead ones."""

LARGEST = 2**30
"""Bytes of the largest payload."""

_SHIFT = 40


def position_of(number: int, offset: int) -> int:
    """Return the position of the record at an offset of a segment."""
    return number << _SHIFT | offset


def segment_and_offset(position: int) -> tuple[int, int]:
    """Split a position into the number of the segment and the offset there."""
    return position >> _SHIFT, position & ((1 << _SHIFT) - 1)


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"journal-{number:08d}.log"


def segment_number(name: str) -> int | None:
    """Return the number of the segment in a file; None: the file is no segment."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def segment_head(number: int) -> bytes:
    """Return the first bytes of a segment."""
    return _SEGMENT.pack(_MAGIC, number, zlib.crc32(_MAGIC + number.to_bytes(8, "little")))


def check_segment_head(data: bytes, number: int) -> bool:
    """
    Check the first bytes of a segment; return False when torn or damaged.

    Raises
    ------
    InputError
        When the head is whole, but of another version or another segment.
    """
    head = data[:SEGMENT_HEAD]
    if len(head) == SEGMENT_HEAD:
        magic, found, check = _SEGMENT.unpack(head)
        # Checksum first: a torn head is cut off, but a good head of another version must stop the
        # start before anything is changed.
        if check == zlib.crc32(head[:16]):
            if magic != _MAGIC:
                raise InputError("is not of a version that can be read here")
            if found != number:
                raise InputError(f"is segment {found}, expected {number}")
            return True
    return False


def record_head(position: int, kind: int, payload: bytes) -> bytes:
    """Return the head of a record, with a checksum that is good at this position only."""
    return _RECORD.pack(len(payload), _checksum(position, kind, payload), kind)


def parse_record(data: bytes, position: int) -> tuple[int, bytes] | None:
    """
    Return kind and payload from all bytes of a record; None: the record is damaged.

    The checksum covers the position, so that an intact record found elsewhere counts as damaged.
    """
    if len(data) < RECORD_HEAD:
        return None
    length, check, kind = _RECORD.unpack_from(data)
    payload = data[RECORD_HEAD:]
    if length != len(payload) or check != _checksum(position, kind, payload):
        return None
    return kind, payload


def batch_head(position: int, body: bytes | bytearray | memoryview) -> bytes:
    """Return the head of a batch."""
    payload = _BATCH.pack(_BATCH_MAGIC, len(body), zlib.crc32(body))
    return record_head(position, BATCH, payload) + payload


def batch_at(data: memoryview, number: int, offset: int) -> tuple[int, int] | None:
    """
    Return size and checksum of the body of the batch that begins at an offset of a segment.

    None: no batch begins there. Whether the body is whole is not checked.
    """
    head = bytes(data[offset : offset + BATCH_HEAD])
    if len(head) < BATCH_HEAD:
        return None
    found = parse_record(head, position_of(number, offset))
    if found is None or found[0] != BATCH:
        return None
    magic, size, check = _BATCH.unpack(found[1])
    return (size, check) if magic == _BATCH_MAGIC else None


def next_batch(data: bytes, number: int, offset: int) -> int | None:
    """
    Return the offset of the first batch head at or after an offset; None: there is none.

    Recovery searches this way behind damage: a batch there shows that the damage is no torn end.

    Parameters
    ----------
    data
        All bytes of the segment.
    number
        Number of the segment: heads of other segments do not count.
    """
    view = memoryview(data)
    at = data.find(_BATCH_MAGIC, offset)
    while at >= 0:
        # The search for the magic runs at the speed of C; only its hits are checked, since
        # payloads may hold the same bytes.
        begin = at - RECORD_HEAD
        if begin >= offset and batch_at(view, number, begin) is not None:
            return begin
        at = data.find(_BATCH_MAGIC, at + 1)
    return None


def records_in(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """
    Yield offset, whole size and kind of each record of a batch's body, whose checksum is good.

    Raises
    ------
    InputError
        When the records do not fill the body: a program at fault has written the batch.
    """
    while begin < end:
        if end - begin < RECORD_HEAD:
            break
        length, _check, kind = _RECORD.unpack_from(data, begin)
        size = RECORD_HEAD + length
        yield begin, size, kind
        begin += size
    if begin != end:
        raise InputError(f"records end at {begin}, their batch at {end}")


_DEAD_DECODER = msgspec.msgpack.Decoder(tuple[int, list[int]])


def encode_dead(number: int, offsets: Sequence[int]) -> bytes:
    """Encode the list of a segment's dead records."""
    return msgspec.msgpack.encode((number, offsets))


def decode_dead(payload: bytes) -> tuple[int, list[int]]:
    """Decode what :func:`encode_dead` wrote."""
    return _DEAD_DECODER.decode(payload)


def _checksum(position: int, kind: int, payload: bytes) -> int:
    # The position is part of it: bytes of a record that lie elsewhere, in a payload or in blocks
    # that the disk had put there before, are no record.
    return zlib.crc32(payload, zlib.crc32(_PLACE.pack(position, len(payload), kind)))
