"""Countable resources of a campaign, which its tasks hold over all sites together."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import bursar
from bursar.api.site_resolution import resolve_sites
from bursar.formats.campaign_file import read_campaign
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.remote.submission import specs_of

FIVE = """\
[campaign]
resources = { link = 4, licence = 5 }
[tasks.load]
command = "true"
resources = { link = 2 }
[tasks.fit]
command = "true"
resources = { licence = 1 }
"""

LOG = (
    "echo + >> {log}; n=$(grep -c + {log}); m=$(grep -c - {log}); echo $((n - m)); sleep 0.2;"
    " echo - >> {log}"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text)
    return path


def test_sites_have_what_the_campaign_states_unless_they_have_their_own(tmp_path: Path) -> None:
    campaign = read_campaign(written(tmp_path, FIVE))
    sites = (
        SiteFacts(name="a", processors=9),
        SiteFacts(name="b", processors=9, resources={"licence": 1, "gpu": 2}),
    )
    first, second = resolve_sites(sites, campaign)
    assert first.resources == {"link": 4, "licence": 5}
    assert second.resources == {"link": 4, "licence": 1, "gpu": 2}
    assert (first.processors, second.processors) == (9, 9)  # neither name is held by all tasks


@pytest.mark.parametrize(
    ("resources", "held", "processors"),
    [
        ({"link": 4}, ["link = 1"] * 2, 4),
        ({"link": 5}, ["link = 2", "link = 3"], 2),
        ({"link": 4, "licence": 3}, ["link = 1, licence = 1"] * 2, 3),
        ({"link": 4}, ["link = 1", ""], 8),
    ],
)
def test_no_more_processors_are_bought_than_can_be_used(
    resources: Mapping[str, int], held: list[str], processors: int, tmp_path: Path
) -> None:
    totals = ", ".join(f"{name} = {total}" for name, total in resources.items())
    tasks = "".join(
        f'[tasks.t{n}]\ncommand = "true"\nresources = {{ {one} }}\n' for n, one in enumerate(held)
    )
    text = f"[campaign]\nresources = {{ {totals} }}\n{tasks}"
    campaign = read_campaign(written(tmp_path, text))
    sites = tuple(SiteFacts(name=name, processors=4) for name in "ab")
    assert sum(site.processors for site in resolve_sites(sites, campaign)) == processors


def test_a_site_is_as_wide_as_its_own_resources_let_it_be(tmp_path: Path) -> None:
    """Three licences for tasks of two processors and a licence each; what b offers is as it is."""
    text = '[tasks.a]\ncommand = "true"\nprocessors = 2\nresources = { licence = 1 }\n'
    campaign = read_campaign(written(tmp_path, text))
    sites = tuple(
        SiteFacts(name=name, kind=kind, processors=16, resources=had)
        for name, kind, had in (
            ("a", "local", {"licence": 3}),
            ("b", "advertised", {"licence": 3}),
            ("c", "batch", {}),
        )
    )
    assert [site.processors for site in resolve_sites(sites, campaign)] == [6, 16, 16]


def test_tasks_of_all_sites_together_hold_no_more_than_there_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    text = (
        "[campaign]\nresources = { link = 2 }\n"
        f"[tasks.load]\ncommand = '{LOG.format(log=log)}'\nresources = {{ link = 1 }}\n"
        "[tasks.load.parameters]\nn = { from = 1, to = 8, step = 1 }\n"
        '[tasks.free]\ncommand = "true"\n'
    )
    sites = tmp_path / "sites.toml"
    sites.write_text(
        "".join(f'[site.{name}]\nkind = "local"\nprocessors = 2\nunit_price = 1\n' for name in "ab")
    )
    done = bursar.run(written(tmp_path, text), sites, deadline="1h", runs=tmp_path / "runs")
    assert done.succeeded
    together = [int(one.stdout) for one in done.tasks.values() if one.stdout]
    assert len(together) == 8
    assert max(together) == 2


def test_a_service_gets_them_as_groups(tmp_path: Path) -> None:
    (load, fit) = specs_of(read_campaign(written(tmp_path, FIVE.replace("link = 2", "link = 1"))))
    assert (load.group, load.at_once, load.resources) == ("link", 4, {})
    assert (fit.group, fit.at_once, fit.resources) == ("licence", 5, {})
    with pytest.raises(InputError, match='task "load" holds several'):
        list(specs_of(read_campaign(written(tmp_path, FIVE))))


def test_a_service_gets_the_limit_of_an_array(tmp_path: Path) -> None:
    script = tmp_path / "array.sh"
    script.write_text("#!/bin/sh\n#SBATCH -a 0-3%2 --gpus=1\ntrue\n")
    specs = list(specs_of(read_campaign(script)))
    assert [(one.group, one.at_once, one.resources) for one in specs] == [("", 2, {"gpu": 1})] * 4


def test_a_task_holds_no_more_than_the_campaign_has(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_campaign(written(tmp_path, FIVE.replace("licence = 1", "licence = 6")))
    assert error.value.message == 'task "fit" holds 6 of "licence", and the campaign has 5'
    assert error.value.where == f"{tmp_path}/c.toml:2: campaign.resources.licence"


def test_gpus_belong_to_sites(tmp_path: Path) -> None:
    text = '[campaign]\nresources = { gpu = 1 }\n[tasks.a]\ncommand = "true"\n'
    with pytest.raises(InputError, match="belongs to sites") as error:
        read_campaign(written(tmp_path, text))
    assert error.value.where == f"{tmp_path}/c.toml:2: campaign.resources.gpu"
