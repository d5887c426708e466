"""The simulation of faults notices when the service is broken on purpose."""

import pytest
from tests.simulation.faults.breaks import BREAKS, Break

from bursar.simulation.faults.world import simulate

_MOST = 40
"""Seeds that are looked at from a break's first one on."""


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_a_break_is_noticed(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some seed ends badly with it, and the very same seed ends well without."""
    caught = None
    with monkeypatch.context() as patch:
        broken.apply(patch)
        for seed in range(broken.first, broken.first + _MOST):
            if simulate(seed).wrong:
                caught = seed
                break
    assert caught is not None
    assert not simulate(caught).wrong
