"""Open negotiations: how many a user may have, and how long each is remembered."""

import math

from bursar.service.interfaces import ServiceError

MOST = 50
"""Negotiations of one user; with one more, the one that was silent for longest is forgotten."""

LONGEST = 500
"""Greatest number of messages of a user in one negotiation."""

SILENCE = 3_600.0
"""Seconds without a message after which a negotiation is forgotten."""


class Negotiations:
    """Open negotiations of each user, the one that was silent for longest first."""

    def __init__(self) -> None:
        self._last_messages: dict[str, dict[str, tuple[float, int]]] = {}

    def record_message(self, user: str, deal: str, now: float) -> str | None:
        """
        Note a message of a user in a negotiation.

        Returns
        -------
        str or None
            The user's negotiation that is to be forgotten, as there are too many; None: none.

        Raises
        ------
        ServiceError
            429, when the negotiation has too many messages.
        """
        mine = self._last_messages.setdefault(user, {})
        # Popped and put back at the end: a dictionary keeps its order, so the first is always the
        # one that was silent for longest.
        _, count = mine.pop(deal, (now, 0))
        # Before the refusal: who goes on about a deal that is too long does not have it forgotten,
        # and begin again at 0.
        mine[deal] = now, min(count + 1, LONGEST)
        if count >= LONGEST:
            raise ServiceError(
                "over-quota", 429, f"more than {LONGEST} messages about one deal", where="deal"
            )
        if len(mine) <= MOST:
            return None
        oldest = next(iter(mine))
        del mine[oldest]
        return oldest

    def silent(self, now: float) -> list[tuple[str, str]]:
        """Return user and deal of the negotiations that have expired."""
        old = [
            (user, deal)
            for user, mine in self._last_messages.items()
            for deal, (last, _) in mine.items()
            if now >= last + SILENCE
        ]
        for user, deal in old:
            del self._last_messages[user][deal]
            if not self._last_messages[user]:
                del self._last_messages[user]
        return old

    def next_tick(self) -> float:
        """Return when the next negotiation expires; infinite for never."""
        firsts = (next(iter(mine.values()))[0] for mine in self._last_messages.values() if mine)
        return min(firsts, default=math.inf) + SILENCE
