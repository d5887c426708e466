"""What is charged of an agreement, whatever the service's clock says after a restart."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bursar.market.agreement import Agreement, Terms
from bursar.provisioning.accounting import ProcessorSpan
from bursar.service.billing.agreement_registry import (
    AgreementRecord,
    on_agreement_ended,
    on_processors_ready,
    on_service_restarted,
)

START, SECONDS = 1000.0, 100.0


def fresh() -> AgreementRecord:
    terms = Terms(processors=2, start=START, seconds=SECONDS, unit_price=1.0, currency="SU")
    return AgreementRecord(
        agreement=Agreement(id="a", owner="uni", customer="ann", terms=terms, signed_at=START - 10)
    )


happens = st.tuples(
    st.sampled_from(["ready", "crash"]), st.integers(0, 2), st.floats(START - 20, START + 120)
)


@given(st.lists(happens, max_size=12), st.floats(START - 20, START + 120))
def test_no_moment_is_charged_twice(story: list[tuple[str, int, float]], end: float) -> None:
    """Clocks of different lives go forth and back; the end is never before what was charged."""
    deal, charged = fresh(), list[ProcessorSpan]()
    for kind, processors, now in story:
        deal, metered = (
            on_service_restarted(deal, now)
            if kind == "crash"
            else on_processors_ready(deal, processors, now)
        )
        charged += [one.span for one in metered]
    deal, metered = on_processors_ready(deal, 0, end)
    charged += [one.span for one in metered]
    deal = on_agreement_ended(deal, end, 0)

    assert all(one.end <= other.start for one, other in pairwise(charged))
    assert all(START <= one.start < one.end <= START + SECONDS for one in charged)
    assert deal.ended is not None
    assert all(one.end <= deal.ended for one in charged)
