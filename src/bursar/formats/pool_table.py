"""How the processors of a site are acquired and released, as a sites file says it."""

from typing import Annotated

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.quantities import Duration
from bursar.model.provisioning import Acquisition, AcquisitionPolicy, Release

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]


class PoolTable(TomlTable, frozen=True):
    """How processors are acquired and released."""

    acquisition: Annotated[
        Acquisition, Meta(description="What requests are made for so many processors.")
    ] = "adaptive"
    fewest: Annotated[
        NotNegative, Meta(description="Processors held at the least, while a campaign runs.")
    ] = 0
    most: Annotated[
        Positive | None, Meta(description="Processors held at the most; the site's.")
    ] = None
    shortest: Annotated[Duration, Meta(description="Of one allocation; 1 min.")] = 60.0
    longest: Annotated[Duration, Meta(description="Of one allocation; 1 h.")] = 3600.0
    trigger: Annotated[Positive, Meta(description="Waiting tasks that make it acquire.")] = 1
    release: Annotated[Release, Meta(description="When processors go back.")] = "adaptive"
    idle: Annotated[
        Duration, Meta(description="For which a worker is idle before it goes; 30 s.")
    ] = 30.0
    below: Annotated[
        Positive, Meta(description='With release = "queue": fewer queued tasks give back.')
    ] = 1
    max_pending: Annotated[
        Positive, Meta(description="Requests that wait in the site's queue at a time.")
    ] = 64
    max_racing: Annotated[
        NotNegative, Meta(description="Of these, such as race with requests elsewhere.")
    ] = 2
    probe_every: Annotated[
        Duration,
        Meta(description="Between looks at the queue while nothing changes there; 30 s."),
    ] = 30.0

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> AcquisitionPolicy:
        """
        Return the rules.

        Raises
        ------
        ValueError
            When they contradict each other.
        """
        return AcquisitionPolicy(**msgspec.structs.asdict(self))
