"""The contract with a cloud: list machines by tag, create one, end one, and ask for prices."""

import getpass
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bursar.model.cloud import CloudEndpoint, MachinePrice, plain_word
from bursar.model.errors import SiteError

MachineState = Literal["starting", "running", "ending", "ended"]
"""State of a machine by the provider's word. A machine that is ``ended`` costs nothing more."""

OWNER, RUN, LEASE, PURCHASE = "bursar-owner", "bursar-run", "bursar-lease", "bursar-purchase"
"""Keys of the tags of our machines."""

_LABEL = re.compile(r"bursar-([a-z0-9_]+)-([a-z0-9_]+)-(.+)-([0-9a-f]{8})")
_RUN_LENGTH = 12  # characters


class PurchaseRefused(SiteError):
    """
    The provider has answered clearly that no machine came of a request.

    Any other error leaves open whether a machine was bought.

    Parameters
    ----------
    transient
        Whether the same request may succeed in a moment, as after throttling.
    final
        Whether no such request will succeed before a person changes something, as with an image or
        a type that does not exist, a missing permission, or a quota of 0. Otherwise the provider
        has no such machine for now.
    """

    def __init__(self, message: str, *, transient: bool = False, final: bool = False) -> None:
        super().__init__(message, transient=transient)
        self.final = final


@dataclass(frozen=True, slots=True)
class MachineLabel:
    """
    Names a machine of ours, in its tags and in its name.

    Many providers have no tags, so that the name holds all parts, too.

    Parameters
    ----------
    owner, run, lease
        Whoever buys it, the run that it is for, and the lease that pays for it.
    purchase
        Token of the purchase, eight hexadecimal digits: runs and leases of one name may recur.
    """

    owner: str
    run: str
    lease: str
    purchase: str

    @property
    def name(self) -> str:
        """Name of the machine, letters, digits, ``_`` and ``-``."""
        return f"bursar-{self.owner}-{self.run}-{self.lease}-{self.purchase}"

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the machine."""
        return {OWNER: self.owner, RUN: self.run, LEASE: self.lease, PURCHASE: self.purchase}


def label_of(name: str) -> MachineLabel | None:
    """Return the label that the name of a machine holds; None for a machine that is not ours."""
    found = _LABEL.fullmatch(name)
    return None if found is None else MachineLabel(*found.groups())


def owner_of(cloud: CloudEndpoint) -> str:
    """Return the tag of the owner of our machines: as stated, else user and host."""
    return plain_word(cloud.owner or f"{getpass.getuser()}_{socket.gethostname()}")


def run_word(run: str) -> str:
    """Return the part of a label that stands for a run's identity."""
    return plain_word(run, _RUN_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOrder:
    """
    Asks a provider for one machine.

    Parameters
    ----------
    label
        Label of the machine; its name is also the text by which a provider recognises a repeated
        request, where it keeps such tokens.
    type
        The provider's name of the type.
    image
        Identity of the image.
    user_data
        Script that the machine runs when it starts. Holds a secret.
    ceiling
        Most that is paid for a machine-hour of a spot machine; None: bought on demand.
    """

    label: MachineLabel
    type: str
    image: str
    user_data: str
    ceiling: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudMachine:
    """
    A machine by the provider's word.

    Parameters
    ----------
    id
        The provider's identity of the machine.
    type
        The provider's name of the type; empty where it does not say.
    state
        See :data:`MachineState`.
    began, ended
        When it began and ended by the provider's clock, seconds since the epoch; None where it
        does not say.
    is_spot
        Whether the provider may take it back.
    zone
        Availability zone that it is in; empty where the provider does not say.
    """

    id: str
    label: MachineLabel
    type: str = ""
    state: MachineState
    began: float | None = None
    ended: float | None = None
    is_spot: bool = False
    zone: str = ""


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """
    A price of spot machines from a moment on.

    Parameters
    ----------
    since
        Seconds since the epoch.
    hourly
        Currency units per machine-hour.
    """

    since: float
    hourly: float


class CloudProvider(Protocol):
    """
    A cloud. Each method raises :class:`bursar.model.errors.SiteError` when the cloud fails.

    No message may hold credentials or user data.
    """

    async def machines(self, owner: str, run: str = "") -> Sequence[CloudMachine]:
        """Return the machines with an owner's tag, of one run or of all, ended ones if listed."""

    async def create(self, order: MachineOrder) -> CloudMachine:
        """
        Buy a machine.

        Raises
        ------
        PurchaseRefused
            When no machine came of the request. After any other error one may have been bought.
        """

    async def destroy(self, machine: str) -> bool:
        """
        End a machine; ending it again, or one that is gone, changes nothing.

        Returns
        -------
        bool
            Whether the provider was seen to list the machine when the order was given.
        """

    async def prices(self, types: Sequence[str]) -> Mapping[str, MachinePrice]:
        """Return the prices on demand that the provider or a table knows, by type."""

    async def spot_history(self, type: str, since: float, zone: str = "") -> Sequence[SpotPrice]:
        """
        Return prices of spot machines from a moment on, in order of time.

        The first price may have begun before. Empty: the provider has no history.

        Parameters
        ----------
        zone
            Zone whose prices are wanted; empty: those of the dearest zone.
        """
