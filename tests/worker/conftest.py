"""Workers are tested against the real dispatcher, in a run folder of its own."""

from tests.dispatch.conftest import room as room
from tests.dispatch.conftest import until_fixture as until_fixture
