"""Which requests faults may aim at."""

import pytest

from bursar.remote.calls import ApiCall, cancel, cancel_agreement, destroy, instances, submit
from bursar.remote.messages import PREFIX
from bursar_devtools.faults.fault_plan import FaultTarget
from bursar_devtools.faults.fault_targeting import fault_target_of


@pytest.mark.parametrize(
    ("call", "moment"),
    [
        (submit("some", b"{}", "key"), "submission"),
        (cancel("some", None), "cancellation"),
        (destroy("some"), "destruction"),
        (cancel_agreement("some"), "withdrawal"),
        (instances(), None),
    ],
    ids=lambda value: value.path if isinstance(value, ApiCall) else "",
)
def test_moments_are_told_by_what_the_real_client_asks(
    call: ApiCall[object], moment: FaultTarget | None
) -> None:
    """Else faults would aim at nothing as soon as a path is another one, and nobody would know."""
    assert fault_target_of(call.method, PREFIX + call.path) == moment
