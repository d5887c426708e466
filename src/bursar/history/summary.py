"""Figures of the kinds in a history: how many, how long, where, and how they ended."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bursar.history.columns import BoolArray, FloatArray, ObservationColumns
from bursar.history.encoding import STATUSES


def summarise_kinds(columns: ObservationColumns) -> list[dict[str, Any]]:
    """Return the figures of each kind that has observations, in the order of the columns."""
    return [
        {"kind": name, **_figures(columns, chosen)}
        for index, name in enumerate(columns.kinds)
        if (chosen := columns.kind == index).any()
    ]


def describe_kind(columns: ObservationColumns) -> dict[str, Any]:
    """Return the figures of one kind, whole, by site and by execution, the newest first."""
    whole = np.ones(len(columns), dtype=np.bool_)
    expected = columns.has_succeeded & (columns.estimate > 0)
    ratio = (columns.seconds * columns.speed)[expected] / columns.estimate[expected]
    return {
        "kind": columns.kinds[0],
        **_figures(columns, whole),
        "templates": [
            {"template": text, "observations": int((columns.template == index).sum())}
            for index, text in enumerate(columns.templates)
        ],
        "max_rss": _spread(columns.max_rss[~np.isnan(columns.max_rss)]),
        "waited_s": _spread(columns.waited[~np.isnan(columns.waited)]),
        "actual_over_estimate": _spread(ratio),
        "sites": _parts(columns, "site", columns.sites, columns.site),
        "executions": _parts(columns, "execution", columns.executions, columns.execution),
    }


def _parts(
    columns: ObservationColumns, what: str, names: Sequence[str], index: np.ndarray
) -> list[dict[str, Any]]:
    parts = [{what: name, **_figures(columns, index == i)} for i, name in enumerate(names)]
    return sorted(parts, key=lambda part: part["last_seen"] or 0.0, reverse=True)


def _figures(columns: ObservationColumns, chosen: BoolArray) -> dict[str, Any]:
    succeeded = chosen & columns.has_succeeded
    statuses, counts = np.unique(columns.status[chosen], return_counts=True)
    last = float(columns.start[chosen].max())
    return {
        "observations": int(chosen.sum()),
        "statuses": {
            str(STATUSES[code]): int(count)
            for code, count in zip(statuses.tolist(), counts.tolist(), strict=True)
        },
        "censored": int((chosen & columns.is_censored).sum()),
        "seconds": _spread(columns.seconds[succeeded]),
        "seen_at": sorted({columns.sites[i] for i in np.unique(columns.site[chosen]).tolist()}),
        "last_seen": last or None,
    }


def _spread(values: FloatArray) -> Mapping[str, float] | None:
    """Return median and the tenth and ninetieth percentiles; None without values."""
    if not len(values):
        return None
    low, median, high = np.percentile(values, [10, 50, 90]).tolist()
    return {"p10": low, "median": median, "p90": high}
