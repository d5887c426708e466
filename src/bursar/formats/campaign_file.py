"""Reads a campaign from a file of any known format."""

from collections.abc import Callable
from pathlib import Path

from bursar.formats.toml_reading import check_readable
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError

COMPRESSED = (".gz", ".xz")
"""Suffixes of compressed files, allowed after the suffix of a recorded workflow's format."""


def read_campaign(path: Path) -> Campaign:
    """
    Read the campaign in a file, by the ending of the file's name.

    ``.toml`` is Bursar's own form, ``.pln`` a Nimrod plan, ``.jdl`` jobs as the
    European DataGrid described them, ``.json`` WfFormat, ``.xml`` and ``.dax``
    Pegasus DAX; the last three also compressed (``.gz``, ``.xz``).

    Raises
    ------
    InputError
        When it cannot be read, is empty, has another ending, or is wrong
        within; also when an input that no task makes is not there.
    """
    path = Path(path)
    reader = _reader(path)
    check_readable(path)
    campaign = reader(path)
    if not campaign.recorded:
        from bursar.formats.campaign_toml import check_inputs

        try:
            check_inputs(campaign)
        except InputError as error:
            raise error.within(str(path)) from None
    return campaign


def _reader(path: Path) -> Callable[[Path], Campaign]:
    if path.is_dir():
        raise InputError("is a folder, expected a campaign file", where=str(path))
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-1] if suffixes else ""
    if kind in COMPRESSED and len(suffixes) > 1 and suffixes[-2] in (".json", ".xml", ".dax"):
        kind = suffixes[-2]
    if kind == ".toml":
        from bursar.formats.campaign_toml import read_campaign_toml

        return read_campaign_toml
    if kind == ".pln":
        from bursar.formats.nimrod import read_plan_file

        return read_plan_file
    if kind == ".jdl":
        from bursar.formats.jdl import read_jdl

        return read_jdl
    if kind == ".json":
        from bursar.formats.recorded.wfformat import read_wfformat

        return read_wfformat
    if kind in (".xml", ".dax"):
        from bursar.formats.recorded.dax import read_dax

        return read_dax
    raise InputError(
        "is no campaign file: expected a name that ends in .toml, .pln, .jdl, .json, .xml or .dax",
        where=str(path),
    )
