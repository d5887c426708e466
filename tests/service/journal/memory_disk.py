"""A disk in memory whose power can be cut at any of its operations."""

import asyncio
import random

from bursar.service.disk import DiskBroken, DiskFull

SECTOR = 64


class Platter:
    """
    What outlives a power cut.

    Attributes
    ----------
    files
        Bytes of each, and how many of them are synced.
    left
        Operations until the power is cut; None: it is not.
    capacity
        Bytes in all; None: without limit.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytearray, int]] = {}
        self.left: int | None = None
        self.capacity: int | None = None
        self.reserved = 0
        self.fails = False
        self.going: dict[str, tuple[bytearray, int]] = {}
        self.cut = asyncio.Event()

    @property
    def room(self) -> int:
        """Bytes that may still be written."""
        if self.capacity is None:
            return 1 << 40
        return self.capacity - self.reserved - sum(len(data) for data, _ in self.files.values())

    async def work(self) -> None:
        """An operation begins; it never ends when the power is cut before."""
        await asyncio.sleep(0)
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.cut.set()
                await asyncio.get_running_loop().create_future()

    def crash(self, chance: random.Random) -> "Platter":
        """
        The disk after the power came back: of what was not synced, sectors at random.

        Sometimes only the process was killed: then all is there, and still not synced.
        """
        found = Platter()
        if chance.random() < 0.3:
            found.files = self.files
            return found
        back = {name: file for name, file in self.going.items() if chance.random() < 0.5}
        for name, (data, synced) in {**back, **self.files}.items():
            loose = bytes(data[synced:])
            loose = loose[: chance.choice((0, chance.randint(0, len(loose)), len(loose)))]
            sectors = bytearray()
            shuffled = chance.random() < 0.5
            for begin in range(0, len(loose), SECTOR):
                sector = loose[begin : begin + SECTOR]
                mood = chance.random() if shuffled else 1.0
                if mood < 0.2:
                    sector = bytes(len(sector))
                elif mood < 0.4:
                    sector = chance.randbytes(len(sector))
                sectors += sector
            kept = data[:synced] + sectors
            found.files[name] = kept, len(kept)
        return found


class FakeDisk:
    """A :class:`bursar.service.disk.Disk`."""

    def __init__(self, platter: Platter) -> None:
        self.platter = platter

    async def names(self) -> list[str]:
        await self.platter.work()
        return sorted(self.platter.files)

    async def open(self, name: str, *, create: bool = False) -> "FakeFile":
        await self.platter.work()
        if create:
            if self.platter.room <= 0:
                raise DiskFull(name)
            self.platter.files[name] = bytearray(), 0
        return FakeFile(self.platter, name)

    async def remove(self, name: str) -> None:
        self.platter.going[name] = self.platter.files.pop(name)
        await self.platter.work()
        del self.platter.going[name]

    async def replace(self, name: str, data: bytes) -> None:
        await self.platter.work()
        self.platter.files[name] = bytearray(data), len(data)

    async def load(self, name: str) -> bytes | None:
        await self.platter.work()
        found = self.platter.files.get(name)
        return None if found is None else bytes(found[0])

    async def free(self) -> int:
        await self.platter.work()
        return max(0, self.platter.room)

    async def reserve(self, size: int) -> bool:
        await self.platter.work()
        if size > self.platter.room + self.platter.reserved:
            return False
        self.platter.reserved = size
        return True


class FakeFile:
    """A :class:`bursar.service.disk.DiskFile`."""

    def __init__(self, platter: Platter, name: str) -> None:
        self._platter = platter
        self._name = name

    @property
    def size(self) -> int:
        return len(self._platter.files[self._name][0])

    async def append(self, data: bytes) -> None:
        await self._platter.work()
        stored, synced = self._platter.files[self._name]
        room = max(0, self._platter.room)
        stored += data[:room]
        self._platter.files[self._name] = stored, synced
        if room < len(data):
            raise DiskFull(self._name)

    async def sync(self) -> None:
        await self._platter.work()
        if self._platter.fails:
            raise DiskBroken(f"{self._name}: input/output error")
        data, _ = self._platter.files[self._name]
        self._platter.files[self._name] = data, len(data)

    async def read(self, offset: int, size: int) -> bytes:
        data = bytes(self._platter.files[self._name][0][offset : offset + size])
        await self._platter.work()
        return data

    async def truncate(self, size: int) -> None:
        await self._platter.work()
        data, synced = self._platter.files[self._name]
        self._platter.files[self._name] = data[:size], min(size, synced)
        await self.sync()

    async def close(self) -> None:
        await asyncio.sleep(0)
