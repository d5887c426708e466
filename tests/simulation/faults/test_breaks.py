"""The simulation of faults notices when the service is broken on purpose."""

import pytest
from tests.simulation.faults.breaks import BREAKS, Break
from tests.simulation.faults.catching import seeds_until_noticed

from bursar_devtools.faults.seed_verdict import simulate

_MOST = 400
"""Seeds that are looked at from a break's first one on."""

_SAMPLED = 6
"""One break in so many is tried by the short tests, too."""


@pytest.mark.long
@pytest.mark.parametrize("first", [10_000, 20_000, 30_000])
@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_a_break_is_noticed_from_any_seed_on(broken: Break, first: int) -> None:
    """The first seeds of the short test were chosen; these were not."""
    assert seeds_until_noticed(broken, first, _MOST) is not None


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(
            broken,
            id=broken.name,
            marks=pytest.mark.ci if number % _SAMPLED else [],
        )
        for number, broken in enumerate(BREAKS)
    ],
)
def test_a_break_is_noticed(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some seed ends badly with it, and the very same seed ends well without."""
    caught = None
    with monkeypatch.context() as patch:
        broken.apply(patch)
        for seed in range(broken.first, broken.first + _MOST):
            if broken.concerns(seed) and simulate(seed).wrong:
                caught = seed
                break
    assert caught is not None
    assert not simulate(caught).wrong
