"""How the file of a history tells statuses, times and parameters, for what needs no arrays."""

from collections.abc import Mapping

import msgspec

from bursar.model.task import Status, Value
from bursar.sqlite_file import LockWaitingConnection

STATUSES = tuple(Status)
"""Statuses by their numbers in the file; new ones are only ever added at the end."""

STATUS_CODES = {status: code for code, status in enumerate(STATUSES)}
"""Number of each status in the file."""

MICRO = 1e6
"""Parts of a second in which the file tells times."""


class ParameterNames:
    """Names of parameters by number, and the decoding of their values."""

    def __init__(self, db: LockWaitingConnection) -> None:
        rows = db.execute("SELECT id, names FROM parameter_names")
        self._names = {n: msgspec.json.decode(text, type=tuple[str, ...]) for n, text in rows}
        self._decode = msgspec.msgpack.Decoder(list[Value]).decode

    def mapping(self, number: int | None, values: bytes | None) -> Mapping[str, Value]:
        """Return the values in a row by the names that the row refers to."""
        if number is None or values is None:
            return {}
        return dict(zip(self._names[number], self._decode(values), strict=True))
