"""
Pictures as PNG files, with nothing but the standard library.

References
----------
.. [1] ISO/IEC 15948:2004, Portable Network Graphics, sections 5, 9 and 11.
"""

import struct
import zlib
from pathlib import Path

import numpy as np
from image import FloatArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BIT_RGB = (8, 2, 0, 0, 0)  # depth, colour, compression, filter, interlace
_UP = 2  # the filter: each row as its difference from the one above


def write_png(picture: FloatArray, path: Path) -> None:
    """
    Writes red, green and blue, each 0 to 1, shape ``(3, height, width)``.
    """
    _, height, width = picture.shape
    levels = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    rows = levels.reshape(height, 3 * width)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    lines = np.insert(rows - above, 0, _UP, axis=1)
    header = struct.pack(">II5B", width, height, *_EIGHT_BIT_RGB)
    path.write_bytes(
        _SIGNATURE
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
