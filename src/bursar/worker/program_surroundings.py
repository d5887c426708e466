"""What surrounds the programs of an attempt: standard input, and the variables they inherit."""

import fnmatch
import os
from collections.abc import Mapping

from bursar.dispatch.linux_processes import RUN, WORKER
from bursar.model.task import Inherit, StandardInput


class ProgramSurroundings:
    """
    Standard input and inherited variables of programs.

    Attributes
    ----------
    stdin
        Descriptor that programs read from; None: nothing is there.
    inherits
        Patterns of the worker's variables that programs get; None: all of these.
    """

    __slots__ = ("inherits", "stdin")

    def __init__(self) -> None:
        self.stdin: int | None = None
        self.inherits: tuple[str, ...] | None = None

    def change(self, step: StandardInput | Inherit, folder: str) -> None:
        """
        Take over a step's setting for the programs that follow.

        Raises
        ------
        OSError
            When the file cannot be read.
        """
        if isinstance(step, Inherit):
            self.inherits = step.names
            return
        self.close()
        if step.path is None:
            # Not a pipe: a program that does not read would hold up the writer.
            self.stdin = os.memfd_create("stdin", os.MFD_CLOEXEC)
            with open(self.stdin, "wb", closefd=False) as file:
                file.write(step.text.encode())
            os.lseek(self.stdin, 0, os.SEEK_SET)
        else:
            # Opening a named pipe without a writer would block for ever.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            self.stdin = os.open(os.path.join(folder, step.path), flags)
            os.set_blocking(self.stdin, True)

    def close(self) -> None:
        """Close the standard input."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None


def inherited(environment: Mapping[str, str], patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that match a pattern, and those by which a run's processes are found."""
    return {
        name: value
        for name, value in environment.items()
        if name in (RUN, WORKER) or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
