"""
Split wanted processors into requests to a batch scheduler (DRP section 3.1).

Frey's and Raicu's question: having decided that n processors are wanted, what is asked of the
batch scheduler? One request for all of them waits until all are free; many small ones find room
sooner, and cost a submission each.
"""

import math

from bursar.model.provisioning import Acquisition


def sizes(
    acquisition: Acquisition, processors: int, free: int | None = None, unit: int = 1
) -> tuple[int, ...]:
    """
    Return the processors of each request, in the order of the requests.

    Additive asks for 1, 2, 3, ..., exponential for 1, 2, 4, ...; the last one is what is left.
    The paper counts floor((sqrt(8n + 1) - 1) / 2) requests of the additive kind, and has the
    last of 48 processors be for 3. Both hold only if the formula counts the full requests: 1 to
    9 make 45, and a tenth is for the remaining 3. Only for n = 1, 3, 6, 10, ... nothing remains,
    and the formula is the number of requests. Exponential takes ceil(log2(n + 1)) of them,
    trimmed or not: 1, 2, 4, 8, 16 and 17 for 48.

    Parameters
    ----------
    acquisition
        Any policy that does not look at the schedule: all but ``"adaptive"``.
    processors
        Number wanted in all; a multiple of the unit.
    free
        How many the scheduler says are free, which only ``"optimal"`` asks; None: it does not
        say, and then everything is taken to be.
    unit
        Processors that are of use only together: the sequences then count units.

    Returns
    -------
    tuple of int
        Sizes that sum to the processors; with ``"optimal"``, to the free ones of these, perhaps
        none. With ``"array"``, all are one submission.

    Raises
    ------
    ValueError
        When a number is out of range, or the policy is none of these.

    References
    ----------
    .. [1] Raicu, Dumitrescu, Foster (2007). Dynamic resource provisioning in Grid environments,
       sections 3.1 and 3.2.
    """
    if unit < 1:
        raise ValueError(f"unit must be positive, got {unit}")
    if processors < 0 or processors % unit:
        raise ValueError(f"processors must be a multiple of {unit}, got {processors}")
    count = processors // unit
    if not count:
        return ()
    match acquisition:
        case "one-at-a-time" | "array":
            made = [1] * count
        case "all-at-once" | "node-range":
            made = [count]
        case "additive":
            made = list(range(1, additive_requests(count) + 1))
        case "exponential":
            made = [2**i for i in range(exponential_requests(count) - 1)]
        case "optimal":
            count = count if free is None else min(count, max(free, 0) // unit)
            made = [count] if count else []
        case _:
            raise ValueError(f"{acquisition} has no sequence of its own")
    left = count - sum(made)
    if left:
        made.append(left)
    return tuple(size * unit for size in made)


def additive_requests(processors: int) -> int:
    """Return the paper's floor((sqrt(8n + 1) - 1) / 2), in integers: full requests of 1, 2, ..."""
    return (math.isqrt(8 * processors + 1) - 1) // 2


def exponential_requests(processors: int) -> int:
    """Return the paper's ceil(log2(n + 1)), in integers: requests of 1, 2, 4, ..., trimmed."""
    return processors.bit_length()
