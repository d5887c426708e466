"""Sites that may satisfy a job, before anything is known of their state."""

import pytest
from tests.broker.matchmaking.broker_rig import site

from bursar.broker.matchmaking.ads import may_satisfy
from bursar.model.errors import InputError
from bursar.model.matching import Matching

SITE = site("a", 4, attributes={"OpSys": "LINUX"})


@pytest.mark.parametrize(
    ("requirements", "suits"),
    [
        (None, True),
        ('other.OpSys == "linux"', True),
        ('other.OpSys == "Solaris"', False),
        ("other.FreeCPUs > 2", True),  # nobody can know yet
        ('other.FreeCPUs > 2 && other.OpSys == "Solaris"', False),
        ('other.OpSys == "linux" && other.FreeCPUs > 2 && other.TotalCPUs > 4', False),
        ('other.GlueCEStateStatus == "Production" && other.TotalCPUs >= 4', True),
        ("other.Score > 2", False),  # it does not publish one
        ("other.OpSys > 2", False),  # an error
        ("other.Memory > 2 || other.TotalCPUs > 2", True),
    ],
)
def test_only_what_lasts_counts_against_a_site(requirements: str | None, suits: bool) -> None:
    assert may_satisfy(SITE, Matching(requirements=requirements)) is suits


def test_requirements_that_are_none_are_an_error_at_their_column() -> None:
    with pytest.raises(InputError) as error:
        may_satisfy(SITE, Matching(requirements="other.OpSys =="))
    assert error.value.where.startswith("requirements:1:")
