"""What the tests of sealing share."""

from typing import get_args

import pytest
from tests.sealing.sealing_rig import World

from bursar.model.site import SealLevel


@pytest.fixture
def world() -> World:
    """An authority with users and workers."""
    return World()


@pytest.fixture(params=get_args(SealLevel))
def level(request: pytest.FixtureRequest) -> SealLevel:
    """Each level in turn."""
    return request.param
