"""Weights for somebody's own sites."""

from pathlib import Path

import numpy as np
import pytest

from bursar.api.tuning import tune_rank
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import InputError
from bursar.model.matching import Replica
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.replicas.catalogue import Catalogue


def site(name: str, other: str, rate: float) -> SiteFacts:
    return SiteFacts(
        name=name,
        kind="simulated",
        processors=4,
        storage=f"/{name}",
        storage_rate=rate,
        links={other: Link(0.0, 1e6)},
    )


SITES = (site("near", "far", 1e8), site("far", "near", 1e8))


def reading(folder: Path, size: int, where: str = "near") -> tuple[Campaign, Path]:
    """Jobs of 10 s that read a file of which there is a copy at one site."""
    task = Task(id="job", runtime=10.0, data=("x",))
    file = folder / f"{where}.sqlite"
    with Catalogue(file) as catalogue:
        catalogue.register(Replica(name="x", site=where, url=f"/{where}/x", size=size))
    return Campaign(name="reads", workflow=Workflow((task,))), file


@pytest.mark.ci
def test_where_bringing_a_file_takes_long_its_weight_is_found(tmp_path: Path) -> None:
    """
    A gigabyte over 1 MB/s takes 1,000 s, which no queue of jobs of 10 s is worth: whoever looks
    at files is better than the current policy (alpha 1), and equal seeds find the same.
    """
    campaign, file = reading(tmp_path, 10**9)

    found = tune_rank(SITES, 20.0, campaign=campaign, catalogue=file, jobs=20, seed=1)

    lifetimes = {(w.alpha, w.beta): mean for w, mean, _ in found.found.tried}
    assert found.weights.alpha < 1
    assert found.found.best_lifetime.mean < 0.5 * lifetimes[1.0, 0.0]
    again = tune_rank(SITES, 20.0, campaign=campaign, catalogue=file, jobs=20, seed=1)
    assert again.to_dict() == found.to_dict()


def test_how_far_it_is_is_told() -> None:
    told: list[tuple[int, int]] = []
    tune_rank(SITES, 100.0, jobs=10, on_progress=lambda done, total: told.append((done, total)))
    assert (np.diff([done for done, _ in told]) >= 0).all()
    assert told[-1][0] == told[-1][1]


def test_a_file_that_is_nowhere_is_said(tmp_path: Path) -> None:
    campaign, file = reading(tmp_path, 10**6)
    _, elsewhere = reading(tmp_path, 10**6, "elsewhere")
    with pytest.raises(InputError, match="no copy at any of the sites"):
        tune_rank(SITES, 20.0, campaign=campaign, catalogue=elsewhere)
    with pytest.raises(InputError, match="a single site"):
        tune_rank(SITES[0], 20.0, campaign=campaign, catalogue=file)


def test_jobs_that_fit_nowhere_are_said() -> None:
    task = Task(id="wide", runtime=10.0, processors=9)
    campaign = Campaign(name="wide", workflow=Workflow((task,)))
    with pytest.raises(InputError, match="no job can finish"):
        tune_rank(SITES, 20.0, campaign=campaign, jobs=10)
