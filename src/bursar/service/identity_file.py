"""The service's identity, kept over restarts: names and secrets that it made for itself."""

import msgspec

from bursar.service.disk import Disk
from bursar.service.interfaces import Entropy

FILE = "service.json"

_ID = 8  # bytes
_SECRET = 32  # bytes


class ServiceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """
    Names, secrets and ports that stay the same over restarts.

    Parameters
    ----------
    run
        By which its processes are recognised.
    secret
        From which the tokens of its workers are made, hexadecimal.
    port
        Where workers on this machine find it again; 0: not chosen yet.
    door_certificate, door_key
        Of the door for workers from elsewhere, PEM; empty: none was made yet.
    """

    run: str
    secret: str
    port: int = 0
    door_certificate: str = ""
    door_key: str = ""


async def load_identity(disk: Disk, entropy: Entropy) -> ServiceIdentity:
    """
    Load the service's identity, or make it on the first start.

    Raises
    ------
    DiskFull, DiskBroken
    """
    data = await disk.load(FILE)
    if data is not None:
        return msgspec.json.decode(data, type=ServiceIdentity)
    made = ServiceIdentity(run=entropy(_ID).hex(), secret=entropy(_SECRET).hex())
    await save_identity(disk, made)
    return made


async def save_identity(disk: Disk, identity: ServiceIdentity) -> None:
    """
    Save the identity durably.

    Raises
    ------
    DiskFull, DiskBroken
    """
    await disk.replace(FILE, msgspec.json.encode(identity))
