"""Hold the simulations of the data grid against what the paper states."""

import math
from collections.abc import Callable, Sequence

from bursar_papers.equivalence import (
    ABOVE,
    BELOW,
    Comparison,
    Uncounted,
    compare_with_bounds,
    describe_comparison,
)
from bursar_papers.experiment import PaperFinding, Row
from bursar_papers.summary import Summary, grouped, selected

SLOWLY = "slow update"
CLOSE = 80
"""Seconds between submissions above which the deterministic policy gains, as stated."""

LIGHT_LIMIT, HEAVY_LIMIT = 50, 720
"""Seconds between submissions at which the grids are saturated, as stated."""
TOLL_SET_AT = (450, 500)
"""Seconds between heavy jobs at which the constants of ``completion``'s toll were chosen, see
:mod:`bursar.broker.matchmaking.inflight`; what it gains there proves nothing."""
SATURATED = 2.0
"""Times the lifetime at the lowest load, from which on we call a grid saturated."""


def with_refresh(rows: Sequence[Row]) -> list[Row]:
    """The policy's name says whether the index was refreshed slowly."""
    return [
        row | {"policy": row["policy"] + (f", {SLOWLY}" if row["refresh"] > 1 else "")}
        for row in rows
    ]


def improvements(rows: Sequence[Row]) -> list[Row]:
    """Return by how much each lifetime is below the current policy's, seed by seed, per cent."""
    found = {_place(row): row["lifetime"] for row in rows if row["policy"] == "current"}
    return [
        row | {"improvement": 100 * (1 - row["lifetime"] / found[_place(row)])}
        for row in rows
        if row["policy"] != "current" and _place(row) in found
    ]


def _place(row: Row) -> tuple[object, ...]:
    """Name what a policy and the current one are compared at."""
    return row["gap"], row["seed"], row.get("variant"), row.get("unbalanced")


def find_balanced(rows: Sequence[Row]) -> list[PaperFinding]:
    """Figures 3a and 3b."""
    better = improvements(rows)
    return [
        *_overview(rows),
        *_saturation(
            rows,
            LIGHT_LIMIT,
            uncounted="calibrated",
            remark="; a processor for each element was chosen to go with what is stated",
        ),
        _everywhere(
            better,
            "deterministic",
            f"gains where jobs come more than {CLOSE} s apart",
            lambda gap: gap > CLOSE,
        ),
        _everywhere(
            better,
            "deterministic",
            f"no gain where they come {CLOSE} s apart or closer",
            lambda gap: gap <= CLOSE,
            gains=False,
        ),
        _everywhere(better, "stochastic", "gains at every load"),
        _against_load(better, "stochastic", "gains most at high load", most_at_high=True),
        *_of_completion(rows),
    ]


def find_unbalanced(rows: Sequence[Row]) -> list[PaperFinding]:
    """Figures 4a and 4b."""
    better = improvements(rows)
    found = _overview(rows)
    for policy in ("deterministic", "stochastic"):
        found.append(_everywhere(better, policy, "gains at every load"))
        found.append(_against_load(better, policy, "gains more at low load", most_at_high=False))
    return [*found, *_of_completion(rows)]


def find_heavy(rows: Sequence[Row]) -> list[PaperFinding]:
    """Figures 5a and 5b."""
    quick, slow = selected(rows, refresh=1), with_refresh(rows)
    better = improvements(quick)
    found = [*_overview(slow), *_saturation(quick, HEAVY_LIMIT)]
    for policy in ("deterministic", "stochastic"):
        found.append(_everywhere(better, policy, "gains"))
    slowly = [row for row in rows if row["refresh"] > 1]
    for policy in dict.fromkeys(row["policy"] for row in slowly):
        worse = _above(slow, f"{policy}, {SLOWLY}", policy)
        stated = "slower refresh, longer lifetime" if policy == "stochastic" else ""
        found.append(
            PaperFinding(
                what=f"{policy}: lifetime above that with quick refresh (%)",
                paper=stated,
                ours=_by_gap(worse),
                comparisons=_by_load(worse, at_least=ABOVE) if stated else (),
            )
        )
    return [
        *found,
        *_of_completion(quick, calibrated=TOLL_SET_AT),
        *_of_completion(slowly, f", {SLOWLY}", calibrated=TOLL_SET_AT),
    ]


def find_variants(rows: Sequence[Row]) -> list[PaperFinding]:
    """Whether what was found hangs on what was assumed."""
    found: list[PaperFinding] = []
    better = improvements(rows)
    for unbalanced, variant in dict.fromkeys((r["unbalanced"], r["variant"]) for r in rows):
        where = f"{'unbalanced' if unbalanced else 'balanced'}, {variant}"
        some = selected(better, unbalanced=unbalanced, variant=variant)
        found.extend(
            PaperFinding(
                what=f"{where}: {policy}, shorter than current (%)",
                paper="",
                ours=_by_gap(_means(selected(some, policy=policy))),
            )
            for policy in ("deterministic", "stochastic", "completion")
        )
        here = selected(rows, unbalanced=unbalanced, variant=variant)
        found.extend(_of_completion(here, f", {where}"))
    return found


def _overview(rows: Sequence[Row]) -> list[PaperFinding]:
    """Mean lifetimes of all policies."""
    gaps = sorted({row["gap"] for row in rows})
    found = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        means = _means(selected(rows, policy=policy), "lifetime")
        found.append(
            PaperFinding(
                what=f"{policy}: mean lifetime (s) at {', '.join(map(str, gaps))} s",
                paper="",
                ours=", ".join(str(means[gap]) for gap in gaps),
            )
        )
    return found


def _saturation(
    rows: Sequence[Row], gap: float, *, uncounted: Uncounted | None = None, remark: str = ""
) -> list[PaperFinding]:
    """The current policy's lifetime at a load over that at the lowest, seed by seed."""
    here = selected(rows, policy="current")
    lowest = max(row["gap"] for row in here)
    idle = {row["seed"]: row["lifetime"] for row in selected(here, gap=lowest)}
    at = selected(here, gap=gap)
    if not at or gap == lowest:
        return []
    sample = Summary.of([row["lifetime"] / idle[row["seed"]] for row in at])
    return [
        PaperFinding(
            what=f"current: lifetime at {gap} s over that at {lowest} s",
            paper=f"saturated at {gap} s",
            ours=str(sample),
            comparisons=(compare_with_bounds(sample, at_least=SATURATED),),
            uncounted=uncounted,
            remark=f"saturated: {SATURATED:g} and more{remark}",
        )
    ]


def _everywhere(
    better: Sequence[Row],
    policy: str,
    stated: str,
    at: Callable[[float], bool] = lambda gap: True,
    *,
    gains: bool = True,
) -> PaperFinding:
    """Whether a policy's improvement is above 0 at all these loads; or, not above it."""
    means = {g: s for g, s in _means(selected(better, policy=policy)).items() if at(g)}
    return PaperFinding(
        what=f"{policy}: lifetime below the current policy's (%)",
        paper=stated,
        ours=_by_gap(means),
        comparisons=_by_load(means, at_least=ABOVE) if gains else _by_load(means, at_most=ABOVE),
    )


def _against_load(
    better: Sequence[Row], policy: str, stated: str, *, most_at_high: bool
) -> PaperFinding:
    """Whether the improvement at the highest load is above that at the lowest, or below."""
    rows = selected(better, policy=policy)
    gaps = sorted({row["gap"] for row in rows})
    first, last = (
        {r["seed"]: r["improvement"] for r in selected(rows, gap=g)} for g in (gaps[0], gaps[-1])
    )
    sample = Summary.of([first[seed] - last[seed] for seed in first if seed in last])
    return PaperFinding(
        what=f"{policy}: improvement at {gaps[0]} s less that at {gaps[-1]} s (points)",
        paper=stated,
        ours=str(sample),
        comparisons=(
            compare_with_bounds(sample, at_least=ABOVE)
            if most_at_high
            else compare_with_bounds(sample, at_most=BELOW),
        ),
    )


def _of_completion(
    rows: Sequence[Row], where: str = "", *, calibrated: Sequence[float] = ()
) -> list[PaperFinding]:
    """Compare ours with the best of the others at each load, seed by seed."""
    ours: dict[bool, list[Comparison]] = {False: [], True: []}
    for gap in sorted({row["gap"] for row in rows}):
        here = selected(rows, gap=gap)
        others = {
            key[0]: s.mean
            for key, s in grouped(here, ("policy",), "lifetime").items()
            if key[0] != "completion"
        }
        if not others:
            continue
        best = min(others, key=others.__getitem__)
        sample = _above(here, "completion", best)[gap]
        told = compare_with_bounds(sample, at_most=ABOVE, name=f"{gap} s ({best}):")
        ours[gap in calibrated].append(told)
    return [
        PaperFinding(
            what=f"completion{where}: lifetime above the best of the others (%)",
            paper="at least as good at every load",
            own=True,
            ours=", ".join(map(describe_comparison, comparisons)),
            comparisons=tuple(comparisons),
            uncounted="calibrated" if seen else None,
            remark="two constants of its toll were chosen by these cells" if seen else "",
        )
        for seen, comparisons in ours.items()
        if comparisons or not seen
    ]


def _above(rows: Sequence[Row], first: str, second: str) -> dict[float, Summary]:
    """Return by how much one policy's lifetime is above another's, by load, per cent."""
    other = {(r["gap"], r["seed"]): r["lifetime"] for r in selected(rows, policy=second)}
    values: dict[float, list[float]] = {}
    for row in selected(rows, policy=first):
        beside = other[row["gap"], row["seed"]]
        values.setdefault(row["gap"], []).append(100 * (row["lifetime"] / beside - 1))
    return {gap: Summary.of(found) for gap, found in sorted(values.items())}


def _means(rows: Sequence[Row], value: str = "improvement") -> dict[float, Summary]:
    return {key[0]: s for key, s in sorted(grouped(rows, ("gap",), value).items())}


def _by_gap(means: dict[float, Summary]) -> str:
    return ", ".join(f"{gap} s: {sample}" for gap, sample in means.items())


def _by_load(
    means: dict[float, Summary], at_least: float = -math.inf, at_most: float = math.inf
) -> tuple[Comparison, ...]:
    """Hold the mean at each load against the same bounds."""
    return tuple(
        compare_with_bounds(s, at_least, at_most, name=f"{gap} s") for gap, s in means.items()
    )
