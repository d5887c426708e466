"""The service's identity: names and secrets that are made once and kept over restarts."""

import msgspec

from bursar.service.interfaces import Entropy
from bursar.store import Disk

FILE = "service.json"

_ID = 8  # bytes
_SECRET = 32  # bytes


class ServiceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """
    Names, secrets and ports that stay the same over restarts.

    Parameters
    ----------
    run
        Identifier by which the service's processes are recognised.
    secret
        Secret from which the tokens of workers are derived, hexadecimal.
    port
        Port to which workers on this machine reconnect; 0: not chosen yet.
    door_certificate, door_key
        Certificate and key of the listener for workers on other machines, PEM; empty: not made
        yet.
    """

    run: str
    secret: str
    port: int = 0
    door_certificate: str = ""
    door_key: str = ""


async def load_identity(disk: Disk, entropy: Entropy) -> ServiceIdentity:
    """
    Load the service's identity, or make one on the first start.

    Raises
    ------
    DiskFull, DiskBroken
    """
    data = await disk.run(disk.load, FILE)
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
    await disk.run(disk.replace, FILE, msgspec.json.encode(identity))
