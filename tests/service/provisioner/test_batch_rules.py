"""What a service on a cluster asks its scheduler for."""

from bursar.model.allocation import Allocation, AllocationRequest
from bursar.model.provisioning import AcquisitionPolicy, ProcessorDemand
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.service.interfaces import SHARED
from bursar.service.provisioner.lease_policies import ClusterLeasePolicy, ProvisioningView

HOUR = 3600.0


def test_a_request_that_waits_for_longer_than_it_lasts_is_not_made_twice() -> None:
    """Its time begins when it has its processors: until then it has room for what waits."""
    rules = ClusterLeasePolicy(
        lambda: PoolSite(name="here", rules=AcquisitionPolicy(longest=HOUR), processors=64)
    )
    demand = {SHARED: ProcessorDemand(tasks=4, processors=4, widest=1, work=40.0, longest=10.0)}
    waiting = []
    for i, asked in enumerate(
        rules.decide(ProvisioningView(now=0.0, processors=64, demand=demand))
    ):
        assert isinstance(asked, AllocationRequest)
        lease = f"lease-{i}"
        rules.opened(lease, asked, 0.0)
        waiting.append(
            Allocation(
                name=lease,
                pool=SHARED,
                processors=asked.processors,
                asked=0.0,
                duration=asked.duration,
            )
        )
    assert sum(lease.processors for lease in waiting) == 4

    for hours in (0.5, 1.5, 24.0):
        view = ProvisioningView(now=hours * HOUR, processors=64, demand=demand, leases=waiting)
        assert rules.decide(view) == []
