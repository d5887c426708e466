"""Each kind of site has its own keys; all others are refused, with file and line."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from jsonschema import Draft202012Validator

from bursar.formats.sites_toml import read_sites, sites_schema
from bursar.model.errors import InputError
from bursar.model.provisioning import Manager

SCHEMA = Draft202012Validator(sites_schema())

BATCH = get_args(Manager)

GOOD = {
    "local": "processors = 2\n",
    "advertised": "slot = [{ start = 0, duration = 10, processors = 4 }]\n",
    "simulated": "processors = 2\n",
    "dask": 'processors = 2\nscheduler = "tcp://head:8786"\n',
    "ssh": 'hosts = ["ann@node1"]\n',
    "remote": 'processors = 2\nurl = "https://grid.example.org:7480"\n',
    "cloud": 'provider = "ec2"\nimage = "ami-1"\nmachine = [{ type = "a", processors = 2 }]\n',
    **dict.fromkeys(BATCH, "processors = 2\n"),
}
"""The keys that each kind needs."""

MISSPELT = {
    "local": ("procesors = 2", "processors"),
    "advertised": ("slotss = 'a.csv'", "slots"),
    "simulated": ("tracce = 'log.swf'", "trace"),
    "dask": ("schedulr = 'tcp://head:8786'", "scheduler"),
    "ssh": ("host = ['node1']", "hosts"),
    "remote": ("fingerprnt = 'ab'", "fingerprint"),
    "cloud": ("regoin = 'eu'", "region"),
    **dict.fromkeys(BATCH, ("directivs = []", "directives")),
}

OTHERS = {
    "local": ("queue = 'q'", "a batch scheduler", '"slurm" or "gridengine" or "pbs"'),
    "advertised": ("trace = 'log.swf'", "a simulated site", '"simulated"'),
    "simulated": ("url = 'https://x'", "another Bursar", '"remote"'),
    "dask": ("patience = 30", "another Bursar", '"remote"'),
    "ssh": ("scheduler = 'tcp://head:8786'", "a Dask cluster", '"dask"'),
    "remote": ("slots = 'a.csv'", "an advertised site", '"advertised"'),
    "cloud": ("slots = 'a.csv'", "an advertised site", '"advertised"'),
    **dict.fromkeys(BATCH, ("ca = 'ca.pem'", "a Dask cluster or another Bursar", '"dask" or')),
}

OF_THE_WRONG_TYPE = {
    "local": ("pool = 3", "pool", "expected a table, got a whole number"),
    "advertised": ("slots = 3", "slots", "expected text, got a whole number"),
    "simulated": ("looseness = 'much'", "looseness", "expected a number, got text"),
    "dask": ("ca = ['ca.pem']", "ca", "expected text, got a list"),
    "ssh": ("reverse = 1", "reverse", "expected true or false, got a whole number"),
    "remote": ("patience = true", "patience", "expected a time such as .*got true"),
    "cloud": ("start_up = true", "start_up", "expected a time such as .*got true"),
    **dict.fromkeys(BATCH, ("setup = 'module load x'", "setup", "expected a list, got text")),
}

OUT_OF_RANGE = {
    "local": ("speed = 0.0", "speed", "expected a number > 0.0"),
    "advertised": ("fixed_price = -1", "fixed_price", "must not be negative, got -1"),
    "simulated": ("looseness = 0.5", "looseness", "expected a number >= 1.0"),
    "dask": ("pool = { most = 0 }", r"pool\.most", "expected a whole number >= 1"),
    "ssh": ("pool = { most = 0 }", r"pool\.most", "expected a whole number >= 1"),
    "remote": ("patience = -1", "patience", "must not be negative, got -1"),
    "cloud": ("billing_unit = -1", "billing_unit", "must not be negative, got -1"),
    **dict.fromkeys(BATCH, ("pool = { fewest = -1 }", r"pool\.fewest", "a whole number >= 0")),
}


def test_every_kind_is_here() -> None:
    kinds = {
        table["properties"]["kind"]["enum"][0]
        for name, table in sites_schema()["$defs"].items()
        if name.endswith("SiteTable")
    }
    for cases in (GOOD, MISSPELT, OTHERS, OF_THE_WRONG_TYPE, OUT_OF_RANGE):
        assert set(cases) == kinds


def site(kind: str, line: str = "") -> str:
    """Return a file with a site of the kind, and one more line, which is the third."""
    return f'[site.x]\nkind = "{kind}"\n{line}\n{GOOD[kind]}'


def refusal(folder: Path, text: str) -> str:
    """Return the message; the schema refuses the file, too."""
    path = folder / "s.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_sites(path)
    assert not SCHEMA.is_valid(tomllib.loads(text))
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("kind", GOOD)
def test_what_a_kind_needs_is_enough(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(site(kind))

    (found,) = read_sites(path)

    assert found.kind == ("batch" if kind in BATCH else kind)
    assert list(SCHEMA.iter_errors(tomllib.loads(site(kind)))) == []


@pytest.mark.parametrize("kind", MISSPELT)
def test_a_key_that_no_kind_has_is_told_with_the_nearest(kind: str, tmp_path: Path) -> None:
    line, nearest = MISSPELT[kind]
    key = line.split()[0]

    said = refusal(tmp_path, site(kind, line))

    assert said.startswith(f's.toml:3: site.x.{key}: unknown key with kind = "{kind}", expected ')
    assert said.endswith(f'\nhint: did you mean "{nearest}"?')


@pytest.mark.parametrize("kind", OTHERS)
def test_a_key_of_another_kind_is_told_with_that_kind(kind: str, tmp_path: Path) -> None:
    line, noun, hint = OTHERS[kind]
    key = line.split()[0]

    said = refusal(tmp_path, site(kind, line))

    expected = f's.toml:3: site.x.{key}: goes with {noun} only, not with kind = "{kind}"\n'
    assert said.startswith(f"{expected}hint: set kind = {hint}")


@pytest.mark.parametrize("cases", [OF_THE_WRONG_TYPE, OUT_OF_RANGE], ids=["type", "range"])
@pytest.mark.parametrize("kind", GOOD)
def test_a_wrong_value_is_told_at_its_key(
    kind: str, cases: dict[str, tuple[str, str, str]], tmp_path: Path
) -> None:
    line, key, expected = cases[kind]

    said = refusal(tmp_path, site(kind, line))

    assert re.match(rf"s\.toml:3: site\.x\.{key}: .*{expected}", said), said
    assert "\n" not in said.partition("\nhint: ")[0]


@pytest.mark.parametrize("key", ["price", "pool"])
def test_what_only_slots_do_without_is_told_with_the_reason(key: str, tmp_path: Path) -> None:
    """Nearly every kind has the key; naming them all would help nobody."""
    said = refusal(tmp_path, site("advertised") + f"[[site.x.{key}]]\nkind = 'bulk'\n")

    assert said.startswith(f"s.toml:5: site.x.{key}[0]: does not go with an advertised site\n")


@pytest.mark.parametrize("kind", ["3", "[]", '"Slurm"'])
def test_a_kind_that_is_none_is_told(kind: str, tmp_path: Path) -> None:
    said = refusal(tmp_path, f"[site.x]\nkind = {kind}\nprocessors = 1\n")

    assert said.startswith("s.toml:2: site.x.kind: expected ")


def test_a_site_is_local_where_it_does_not_say(tmp_path: Path) -> None:
    """Errors then name the kind that was assumed."""
    said = refusal(tmp_path, "[[site]]\nname = 'x'\nnodes = 3\n")

    assert said.startswith('s.toml:3: site[0].nodes: unknown key with kind = "local"')


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ('[site.b]\nkind = "cloud"\n{keys}', 'buys of the same provider as "a"'),
        ('[site.A]\nkind = "cloud"\nregion = "eu"\n{keys}', 'like the name of the cloud "a"'),
        ('[site.b]\nkind = "cloud"\nregion = "eu"\n{keys}', ""),
        ('[site.b]\nkind = "cloud"\nowner = "b"\n{keys}', ""),
    ],
)
def test_two_clouds_do_not_end_each_others_machines(
    second: str, complaint: str, tmp_path: Path
) -> None:
    """A run ends machines of its owner that no purchase of the site explains."""
    keys = 'provider = "ec2"\nimage = "ami-1"\nmachine = [{ type = "m", processors = 2 }]\n'
    path = tmp_path / "s.toml"
    path.write_text(f'[site.a]\nkind = "cloud"\n{keys}' + second.format(keys=keys))
    if complaint:
        with pytest.raises(InputError, match=complaint):
            read_sites(path)
    else:
        assert len(read_sites(path)) == 2
