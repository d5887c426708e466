"""Files of weights: what the terms of a rank weigh, and how that was found."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.toml_reading import read_toml
from bursar.model.errors import BursarError
from bursar.model.matching import RankWeights
from bursar.model.status import Fact

Weight = Annotated[float, Meta(ge=0, le=1)]


class WeightsTable(TomlTable, frozen=True):
    """The weights."""

    alpha: Annotated[Weight, Meta(description="Of the rank expression, against the files.")]
    beta: Annotated[Weight, Meta(description="Of access to files, against bringing them.")]


class WeightsFile(TomlTable, frozen=True):
    """A file of weights."""

    weights: Annotated[WeightsTable, Meta(description="The weights.")]
    found: Annotated[
        dict[str, Any] | None, Meta(description="How they were found; for people.")
    ] = None


def read_weights(path: Path) -> RankWeights:
    """
    Read the weights in a TOML file.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field.
    """
    path = Path(path)
    weights = read_toml(path, lambda document: decode(document, WeightsFile)).weights
    return RankWeights(alpha=float(weights.alpha), beta=float(weights.beta))


def write_weights(
    path: Path, weights: RankWeights, found: Mapping[str, Fact] | None = None
) -> None:
    """
    Writes a file that :func:`read_weights` reads.

    Parameters
    ----------
    path
        File to write; an existing file is replaced.
    found
        Circumstances of the search, by name; for readers only.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    document: dict[str, Any] = {"weights": {"alpha": weights.alpha, "beta": weights.beta}}
    if found:
        document["found"] = dict(found)
    path = Path(path)
    try:
        path.write_text(_as_toml(document))
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def _as_toml(document: Mapping[str, Mapping[str, Fact]]) -> str:
    """Tables of plain values."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{_key(k)} = {_written(v)}\n" for k, v in table.items())
        for name, table in document.items()
    )


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _written(name)


def _written(value: Fact) -> str:
    """Write a value as JSON does: TOML agrees but for 0x7f and infinite numbers."""
    if isinstance(value, float):
        return repr(value)
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
