"""
The compiled campaign of a run: every task spelt out, independent of the campaign file.

A resumed run reads this and nothing else, so the campaign file may have been
edited, moved or deleted since.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError

FORMAT = 3


class _StoredCampaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign beside the version of the format, which is known before the campaign is read."""

    format: int
    campaign: msgspec.Raw = msgspec.Raw()


def encode(campaign: Campaign) -> bytes:
    """Encode a campaign as bytes for :func:`decode`."""
    # Absolute: a run may be resumed from another folder.
    rooted = replace(campaign, root=campaign.root.resolve())
    raw = msgspec.Raw(msgspec.msgpack.encode(rooted, enc_hook=_path_as_text))
    return msgspec.msgpack.encode(_StoredCampaign(format=FORMAT, campaign=raw))


def decode(data: bytes) -> Campaign:
    """
    Decode a campaign from the bytes of :func:`encode`.

    Raises
    ------
    BursarError
        When the bytes are damaged or of another format.
    """
    try:
        stored = msgspec.msgpack.decode(data, type=_StoredCampaign)
        if stored.format != FORMAT:
            raise BursarError(
                f"the compiled campaign has format {stored.format}, this version reads {FORMAT}"
            )
        return msgspec.msgpack.decode(stored.campaign, type=Campaign, dec_hook=_path_of_text)
    except msgspec.MsgspecError as error:
        raise BursarError(f"the compiled campaign is damaged: {error}") from error


def _path_as_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def _path_of_text(kind: type, value: Any) -> Path:
    if issubclass(kind, Path):
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} cannot be read")
