"""The column of bodies: a few buffers in place of an object for each of a million tasks."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

_SHIFT = 7
"""Bits of a task's number within its block: the bodies of 128 tasks share a buffer."""

_COMPACTED = 16 << 10
"""Bytes of a buffer below which the room of ended tasks stays until all tasks of it have ended."""

_EMPTY = bytearray()
"""Buffer of a block without bodies; it stands in many places and is never changed."""


class BodyColumn:
    """
    Bodies of an instance's tasks by task number; tasks without a body have an empty one.

    A body of 30 bytes takes 72 as an object in a list, and 42 here. The buffer of a block is given
    up with the last body in it; a long one is copied without its gaps when half of it are gaps.
    """

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        self._left: list[int] = []  # bytes in use, by block
        self._starts: array[int] = array("Q")  # 128 bodies of the greatest size exceed 32 bits
        self._lengths: array[int] = array("I")

    def __getitem__(self, task: int) -> bytearray:
        start = self._starts[task]
        return self._blocks[task >> _SHIFT][start : start + self._lengths[task]]

    def grow(self, more: int) -> None:
        """Extend the column by so many tasks without a body."""
        self._starts.frombytes(bytes(self._starts.itemsize * more))
        self._lengths.frombytes(bytes(self._lengths.itemsize * more))
        blocks = -(-len(self._lengths) >> _SHIFT) - len(self._blocks)
        self._blocks.extend([_EMPTY] * blocks)
        self._left.extend([0] * blocks)

    def fill(self, first: int, bodies: Sequence[bytes]) -> int:
        """Set the bodies of consecutive tasks that have none; return their bytes."""
        sizes = array("I", map(len, bodies))
        self._lengths[first : first + len(bodies)] = sizes
        row = 0
        while row < len(bodies):
            task = first + row
            number = task >> _SHIFT
            end = min(len(bodies), ((number + 1) << _SHIFT) - first)
            joined = b"".join(bodies[row:end])
            block = self._blocks[number]
            ends = accumulate(sizes[row : end - 1], initial=len(block))
            self._starts[task : first + end] = array("Q", ends)
            if block:
                block += joined
            else:
                self._blocks[number] = bytearray(joined)  # of exactly this size
            self._left[number] += len(joined)
            row = end
        return sum(sizes)

    def clear(self, tasks: Iterable[int]) -> int:
        """Drop the bodies of tasks; return their bytes."""
        lengths, lefts, blocks = self._lengths, self._left, self._blocks
        size = 0
        for task in tasks:
            length = lengths[task]
            if length:
                lengths[task] = 0
                size += length
                number = task >> _SHIFT
                lefts[number] = left = lefts[number] - length
                if not left:
                    blocks[number] = _EMPTY
                elif len(blocks[number]) > _COMPACTED:
                    self._compact(number)
        return size

    def _compact(self, number: int) -> None:
        """Copy the buffer of a block without its gaps if these are half of it."""
        block = self._blocks[number]
        if 2 * self._left[number] > len(block):
            return
        starts, lengths = self._starts, self._lengths
        kept = bytearray()
        for task in range(number << _SHIFT, min(number + 1 << _SHIFT, len(lengths))):
            start = starts[task]
            starts[task] = len(kept)
            kept += block[start : start + lengths[task]]
        self._blocks[number] = kept
