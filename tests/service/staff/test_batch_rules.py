"""What a service on a cluster asks its scheduler for."""

from bursar.model.demand import Demand
from bursar.model.provisioning import Acquiring
from bursar.provisioning.view import SiteView
from bursar.service.parties import SHARED
from bursar.service.staff.batch_rules import BatchRules
from bursar.service.staff.view import LeaseView, Open, StaffView

HOUR = 3600.0


def test_a_request_that_waits_for_longer_than_it_lasts_is_not_made_twice() -> None:
    """Its time begins when it has its processors: until then it has room for what waits."""
    rules = BatchRules(lambda: SiteView(name="here", rules=Acquiring(longest=HOUR), processors=64))
    demand = {SHARED: Demand(tasks=4, processors=4, widest=1, work=40.0, longest=10.0)}
    waiting = []
    for i, asked in enumerate(rules.decide(StaffView(now=0.0, processors=64, demand=demand))):
        assert isinstance(asked, Open)
        lease = f"lease-{i}"
        rules.opened(lease, asked, 0.0)
        waiting.append(
            LeaseView(
                name=lease, pool=SHARED, processors=asked.processors, asked=0.0, until=asked.until
            )
        )
    assert sum(lease.processors for lease in waiting) == 4

    for hours in (0.5, 1.5, 24.0):
        view = StaffView(now=hours * HOUR, processors=64, demand=demand, leases=waiting)
        assert rules.decide(view) == []
