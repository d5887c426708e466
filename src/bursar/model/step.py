"""
What a task does: a sequence of steps, carried out in its working directory.

One form serves every source. A shell line of a TOML campaign is one
:class:`Shell`; a Nimrod task block becomes the steps of its commands; a
recorded workflow task becomes a stand-in made of the same steps. Steps are
tagged structs so that they travel to the worker as they are.
"""

import msgspec


class Exec(msgspec.Struct, frozen=True, tag="exec"):
    """Runs a program without a shell. ``argv[0]`` is looked up on ``PATH``."""

    argv: tuple[str, ...]


class Shell(msgspec.Struct, frozen=True, tag="shell"):
    """Runs one line by ``/bin/sh -c``."""

    line: str


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """
    Copies a file or, recursively, a folder.

    Either end may be on the task's node (its working directory) or at the
    root (the campaign's folder to read from; the run's ``files/`` shadows it,
    and is where everything copied to the root is written).
    """

    source: str
    target: str
    source_at_root: bool
    target_at_root: bool


class Redirect(msgspec.Struct, frozen=True, tag="redirect"):
    """From here on, ``stream`` ("stdout" or "stderr") goes to ``path``; None: captured again."""

    stream: str
    path: str | None
    append: bool = False


class OnError(msgspec.Struct, frozen=True, tag="onerror"):
    """Chooses whether later failing steps are ignored or (the default) fail the task."""

    ignore: bool


class Substitute(msgspec.Struct, frozen=True, tag="substitute"):
    """
    Copies a text template, replacing ``$name`` and ``${name}`` by parameter values.

    Unknown names stay as they stand. Paths are in the working directory.
    """

    source: str
    target: str
    values: dict[str, str]


class Call(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """
    Calls a pickled Python function and returns its result.

    Only :class:`bursar.Executor` makes these: the payload is this process's
    own, never read from a campaign file.

    Parameters
    ----------
    payload
        The function and its arguments, pickled.
    as_data
        Whether the result returns as data (:mod:`bursar.worker.plain_data`), which can run no
        code where it is read, or as a pickle, which can.
    """

    payload: bytes
    as_data: bool = False


Step = Exec | Shell | Copy | Redirect | OnError | Substitute | Call
