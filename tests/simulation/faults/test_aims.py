"""Which requests faults may aim at."""

import pytest

from bursar.remote.calls import Call, cancel, cancel_agreement, destroy, instances, submit
from bursar.remote.messages import PREFIX
from bursar.simulation.faults.aims import moment_of
from bursar.simulation.faults.plan import Moment


@pytest.mark.parametrize(
    ("call", "moment"),
    [
        (submit("some", b"{}", "key"), "submission"),
        (cancel("some", None), "cancellation"),
        (destroy("some"), "destruction"),
        (cancel_agreement("some"), "withdrawal"),
        (instances(), None),
    ],
    ids=lambda value: value.path if isinstance(value, Call) else "",
)
def test_moments_are_told_by_what_the_real_client_asks(
    call: Call[object], moment: Moment | None
) -> None:
    """Else faults would aim at nothing as soon as a path is another one, and nobody would know."""
    assert moment_of(call.method, PREFIX + call.path) == moment
