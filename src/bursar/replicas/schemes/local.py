"""Files of this machine."""

import io
import os
import stat

from bursar.replicas.failures import SourceFailed
from bursar.replicas.schemes.source import failing


class LocalSource:
    """A copy read from a file of this machine, links followed."""

    chunk = 256 * 1024  # what is read is still in the processor when it is hashed and written

    def __init__(self, path: str, offset: int) -> None:
        with failing():
            # Not blocking, as a named pipe without a writer would.
            self._file = io.FileIO(path, "rb", opener=_open)
            about = os.fstat(self._file.fileno())
            if not stat.S_ISREG(about.st_mode):
                self._file.close()
                raise SourceFailed("is no regular file", bad=True)
            self.size = about.st_size
            self.tag = f"{about.st_ino}-{about.st_mtime_ns}-{about.st_size}"
            self.start = min(offset, self.size)
            self._file.seek(self.start)

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        with failing():
            return self._file.read(size) or b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
