"""Forecasts in a run's journal: which are written there, and how they are read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bursar.dispatch.journal_records import RunEvent
from bursar.forecasts.fan import ForecastFan

FORECAST = "forecast"
"""Kind of the events with a forecast, as JSON."""

EVENTS = 20
"""Forecasts that are journalled by one process besides those that the history keeps, at most."""


@dataclass(slots=True)
class JournalPace:
    """Chooses the forecasts that are journalled: one for each part of a run's expected length."""

    _part: int = -1
    _noted: int = 0

    def is_next(self, fan: ForecastFan) -> bool:
        """Take in a forecast; return whether it is journalled."""
        whole = fan.end_s.p50
        part = math.floor(EVENTS * fan.at_s / whole) if whole > 0 else 0
        if part <= self._part or self._noted >= EVENTS:
            return False
        self._part = part
        self._noted += 1
        return True


def fans_of(events: Sequence[RunEvent]) -> list[tuple[RunEvent, ForecastFan]]:
    """Return the journalled forecasts of a run in order, without those that cannot be read."""
    found = []
    for event in events:
        if event.kind == FORECAST:
            try:
                found.append((event, msgspec.json.decode(event.text, type=ForecastFan)))
            except msgspec.MsgspecError:
                continue
    return found
