"""Sites files: what is read, what is refused and where, and that their schema agrees."""

import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bursar.formats.campaign_file import campaign_schema
from bursar.formats.sites_toml import read_sites, sites_schema
from bursar.formats.units import parse_bandwidth
from bursar.model.errors import InputError
from bursar.model.network import Link
from bursar.model.slot import Slot
from bursar.service.config_toml import service_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "sites.md"
SCHEMA = Draft202012Validator(sites_schema())

HEAD = '[site.x]\nkind = "advertised"\n'
SLOT = "[[site.x.slot]]\nstart = 0\nduration = 10\nprocessors = 4\n"
TWO = "[site.a]\nprocessors = 1\n[site.b]\nprocessors = 1\n"
LINK = '[[link]]\nfrom = "a"\nto = "b"\n'


def blocks(kind: str) -> list[str]:
    """What the reference shows."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def written(folder: Path, text: str) -> Path:
    """A sites file."""
    path = folder / "s.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    """The one line that says why the file is refused, without its folder."""
    with pytest.raises(InputError) as caught:
        read_sites(written(folder, text))
    line = str(caught.value)
    assert "\n" not in line.partition("\nhint: ")[0]
    return line.replace(f"{folder}/", "")


@pytest.mark.parametrize("text", blocks("toml"))
def test_the_reference_shows_what_is_read(text: str, tmp_path: Path) -> None:
    """Every block of it, and the schema has nothing against them."""
    (tmp_path / "slots.csv").write_text(blocks("csv")[0])
    (tmp_path / "log.swf").touch()

    assert read_sites(written(tmp_path, text))
    assert list(SCHEMA.iter_errors(tomllib.loads(text))) == []


def test_the_example_with_slots_means_this(tmp_path: Path) -> None:
    """Prices come from the site where the slot has none; the site is as large as need be."""
    text = next(t for t in blocks("toml") if "[site.centre]" in t)

    here, centre = read_sites(written(tmp_path, text))

    first = Slot(
        site="centre",
        start=0.0,
        duration=5400.0,
        processors=16,
        unit_price=0.05 / 3600,
        fixed_price=0.1,
        divisible=False,
    )
    second = Slot(
        site="centre",
        start=7200.0,
        duration=14400.0,
        processors=32,
        unit_price=0.03 / 3600,
        fixed_price=0.1,
        divisible=True,
    )
    assert centre.slots == centre.offers == (first, second)
    assert (centre.kind, centre.processors, centre.currency) == ("advertised", 32, "EUR")
    assert here.slots is None
    assert here.links == {"centre": Link(0.05, 1e8)}
    assert centre.links == {"here": Link(0.05, 1e8)}


def test_a_list_of_sites_has_its_slots_below_each(tmp_path: Path) -> None:
    """``[[site.slot]]`` belongs to the ``[[site]]`` above."""
    entry = '[[site]]\nname = "{}"\nkind = "advertised"\n'
    slot = "[[site.slot]]\nstart = 0\nduration = 10\nprocessors = {}\n"
    text = entry.format("a") + slot.format(1) + slot.format(2) + entry.format("b") + slot.format(3)

    a, b = read_sites(written(tmp_path, text))

    assert [s.processors for s in a.offers] == [1, 2]
    assert [(s.site, s.processors) for s in b.offers] == [("b", 3)]
    assert (a.processors, b.processors) == (3, 3)
    assert SCHEMA.is_valid(tomllib.loads(text))


def test_what_is_leased_is_divisible(tmp_path: Path) -> None:
    """Nobody has to say so, and a price that nobody gives is unknown."""
    (site,) = read_sites(written(tmp_path, HEAD + SLOT + "leased = true\n"))

    (slot,) = site.offers
    assert (slot.leased, slot.divisible, slot.extensible) == (True, True, False)
    assert (slot.unit_price, slot.fixed_price) == (None, 0.0)


@pytest.mark.parametrize(
    ("slots", "processors"),
    [
        # 10 s of 4, then 10 s of 4
        (["start = 0", "start = 10"], 4),
        (["start = 0", "start = 9"], 8),
        (["start = 0", "start = 9", "start = 15"], 8),
        (["start = 0", "start = 9", "start = 9.5"], 12),
        (["start = 0\nextensible = true", "start = 100"], 8),
        # 0.1 + 0.2 is a little more than 0.3
        (["start = 0.1\nduration = 0.2", "start = 0.3"], 4),
    ],
)
def test_an_advertised_site_is_as_large_as_its_slots(
    slots: list[str], processors: int, tmp_path: Path
) -> None:
    """The most at one moment; what may be extended counts to no end."""
    text = HEAD
    for slot in slots:
        lines = slot if "duration" in slot else f"{slot}\nduration = 10"
        text += f"[[site.x.slot]]\nprocessors = 4\n{lines}\n"

    (site,) = read_sites(written(tmp_path, text))

    assert site.processors == processors
    size = f'kind = "advertised"\nprocessors = {processors}\n'
    (same,) = read_sites(written(tmp_path, text.replace('kind = "advertised"\n', size)))
    assert same == site
    if processors > 4:
        size = f'kind = "advertised"\nprocessors = {processors - 1}\n'
        line = refusal(tmp_path, text.replace('kind = "advertised"\n', size))
        assert re.match(r"s\.toml:\d+: site\.x\.slot\[[12]\]: overlaps slot\[0\]", line), line
        assert f"{processors} processors are offered, the site has {processors - 1}" in line


def test_a_link_may_lead_one_way(tmp_path: Path) -> None:
    """The other way may have another link, or none."""
    there = LINK + 'latency = 2\none_way = true\nbandwidth = "1 Gbit/s"\n'
    back = '[[link]]\nfrom = "b"\nto = "a"\none_way = true\n'

    a, b = read_sites(written(tmp_path, TWO + there))
    assert (a.links, b.links) == ({"b": Link(2.0, 1.25e8)}, {})

    a, b = read_sites(written(tmp_path, TWO + there + back))
    assert (a.links, b.links) == ({"b": Link(2.0, 1.25e8)}, {"a": Link(0.0, math.inf)})


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        (8, 8.0),
        (0.5, 0.5),
        ("8", 8.0),
        ("100 MB/s", 1e8),
        ("1.5kB/s", 1500.0),
        ("2 KB/s", 2000.0),
        ("2 KiB/s", 2048.0),
        ("10 Gbit/s", 1.25e9),
        ("1e3 B / s", 1000.0),
        ("1 TiB/s", 2.0**40),
    ],
)
def test_a_bandwidth_may_be_written_in_many_ways(text: object, bytes_per_second: float) -> None:
    """Bytes or bits, by thousands or by 1024."""
    assert parse_bandwidth(text) == bytes_per_second


@given(st.text(max_size=12) | st.floats() | st.integers())
def test_any_bandwidth_is_positive_or_refused(value: object) -> None:
    """Whatever stands there, and on one line."""
    refused = None
    try:
        assert 0 < parse_bandwidth(value) < math.inf
    except InputError as error:
        refused = str(error)
    assert refused is None or refused.isprintable()


REFUSED = {
    "slots of a local site": (
        "[site.x]\nprocessors = 1\n" + SLOT,
        "s.toml:3: site.x.slot.0.: goes",
    ),
    "a file of a local site": ('[site.x]\nslots = "a.csv"\n', "s.toml:2: site.x.slots: goes with"),
    "no slots": (HEAD, "s.toml:1: site.x: an advertised site needs slots"),
    "an empty list of slots": (HEAD + "slot = []\n", "site.x: an advertised site needs slots"),
    "both": (HEAD + 'slots = "a.csv"\n' + SLOT, "s.toml:3: site.x.slots: .* not both"),
    "no such file": (HEAD + 'slots = "a.csv"\n', r"site.x.slots: a.csv: no such file"),
    "no name of a file": (HEAD + r'slots = "a\nb"' + "\n", "site.x.slots: expected the name"),
    "no list": (HEAD + "slot = 3\n", "s.toml:3: site.x.slot: expected a list"),
    "no table": (HEAD + "slot = [3]\n", r"s.toml:3: site.x.slot\[0\]: expected a table"),
    "unknown kind": (
        '[site.x]\nkind = "advertized"\n',
        'kind: .*\nhint: did you mean "advertised"',
    ),
    "no start": (HEAD + SLOT.replace("start = 0\n", ""), r'slot\[0\]: expected a key "start"'),
    "negative start": (
        HEAD + SLOT.replace("= 0", "= -1"),
        r"s.toml:4: site.x.slot\[0\].start: must",
    ),
    "start is nan": (
        HEAD + SLOT.replace("= 0", "= nan"),
        r"slot\[0\].start: expected a time .*nan",
    ),
    "endless": (HEAD + SLOT.replace("= 10", "= inf"), r"slot\[0\].duration: expected a time .*inf"),
    "no duration": (
        HEAD + SLOT.replace("= 10", "= 0"),
        r"s.toml:5: site.x.slot\[0\].duration: must",
    ),
    "text for a duration": (
        HEAD + SLOT.replace("= 10", '= "ten"'),
        r"slot\[0\].duration: expected",
    ),
    "so short that it is nothing": (
        HEAD + SLOT.replace("start = 0", "start = 1e12").replace("= 10", "= 1e-9"),
        r"slot\[0\].duration: must be positive",
    ),
    "no processors": (
        HEAD + SLOT.replace("= 4", "= 0"),
        r"s.toml:6: site.x.slot\[0\].processors: ",
    ),
    "a slot larger than its site": (
        HEAD + "processors = 3\n" + SLOT,
        r"s.toml:4: site.x.slot\[0\]: from 0 s on 4 processors are offered, the site has 3",
    ),
    "half a processor": (
        HEAD + SLOT.replace("= 4", "= 1.5"),
        r"processors: expected a whole number",
    ),
    "too many processors": (HEAD + SLOT.replace("= 4", "= 9000000000"), r"processors: expected"),
    "a huge site": ("[site.x]\nprocessors = 9000000000\n", "site.x.processors: expected"),
    "negative price": (HEAD + SLOT + "unit_price = -1\n", r"slot\[0\].unit_price: must not be neg"),
    "price is nan": (
        HEAD + SLOT + "fixed_price = nan\n",
        r"s.toml:7: .*fixed_price: expected an am",
    ),
    "unknown key": (
        HEAD + SLOT + "extendible = true\n",
        r's.toml:7: site.x.slot\[0\].extendible: unknown key.*\nhint: did you mean "extensible"',
    ),
    "second slot": (HEAD + SLOT + SLOT.replace("= 10", "= -3"), r"s.toml:9: site.x.slot\[1\].dur"),
    "leased whole": (
        HEAD + SLOT + "leased = true\ndivisible = false\n",
        "s.toml:8: .*is divisible",
    ),
    "text for a truth": (HEAD + SLOT + 'leased = "yes"\n', "leased: expected true or false"),
    "two currencies": (
        HEAD + SLOT + 'unit_price = "1 EUR/core-hour"\nfixed_price = "1 USD"\n',
        "sev",
    ),
    "the site in another": (
        HEAD + 'currency = "GBP"\n' + SLOT + 'fixed_price = "1 USD"\n',
        "s.toml:3: site.x.currency: names several currencies: GBP, USD",
    ),
    "unknown from": (
        TWO + LINK.replace('"a"', '"aa"'),
        's.toml:6: .*from: unknown site "aa"\nhint: ',
    ),
    "unknown to": (TWO + LINK.replace('"b"', '"c"'), r's.toml:7: link\[0\].to: unknown site "c"'),
    "to itself": (TWO + LINK.replace('"b"', '"a"'), r"s.toml:7: link\[0\].to: expected two diff"),
    "no to": (TWO + '[[link]]\nfrom = "a"\n', r's.toml:5: link\[0\]: expected a key "to"'),
    "a link twice": (TWO + LINK + LINK, r's.toml:8: link\[1\]: duplicate link from "a" to "b"'),
    "a link back": (
        TWO + LINK + '[[link]]\nfrom = "b"\nto = "a"\none_way = true\n',
        r'link\[1\]: duplicate link from "b" to "a"',
    ),
    "negative latency": (TWO + LINK + "latency = -1\n", r"s.toml:8: link\[0\].latency: must not"),
    "latency is nan": (TWO + LINK + "latency = nan\n", r"link\[0\].latency: expected a time"),
    "no bandwidth": (TWO + LINK + "bandwidth = 0\n", r"link\[0\].bandwidth: must be positive"),
    "negative bandwidth": (TWO + LINK + "bandwidth = -5\n", r"bandwidth: must be positive"),
    "bandwidth is nan": (TWO + LINK + "bandwidth = nan\n", r"bandwidth: expected a bandwidth"),
    "bandwidth is inf": (TWO + LINK + "bandwidth = inf\n", r"bandwidth: expected a bandwidth"),
    "bits or bytes": (TWO + LINK + 'bandwidth = "1 Gb/s"\n', r"bandwidth: .* such as .*Gbit/s"),
    "a size": (TWO + LINK + 'bandwidth = "1 GB"\n', "s.toml:8: .*bandwidth: expected a bandwidth"),
    "unknown key of a link": (TWO + LINK + "latencies = 1\n", 'unknown key.*\nhint: .*"latency"'),
    "a link as a table": (TWO + '[link]\nfrom = "a"\nto = "b"\n', "link: expected a list"),
    "links only": (LINK, "has no site"),
}

BEYOND_THE_SCHEMA = {
    "a slot larger than its site",
    "no such file",
    "no name of a file",
    "start is nan",
    "endless",
    "so short that it is nothing",
    "price is nan",
    "two currencies",
    "the site in another",
    "unknown from",
    "unknown to",
    "to itself",
    "a link twice",
    "a link back",
    "latency is nan",
    "bandwidth is nan",
    "bandwidth is inf",
}
"""Wrong by what is elsewhere, or not to be written in JSON."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_told_at_its_place(what: str, tmp_path: Path) -> None:
    """One line with file, line and key; the schema refuses it too where it can."""
    text, expected = REFUSED[what]

    line = refusal(tmp_path, text)

    assert re.search(expected, line), line
    if what not in BEYOND_THE_SCHEMA:
        assert not SCHEMA.is_valid(tomllib.loads(text))


@pytest.mark.parametrize("made", [sites_schema, campaign_schema, service_schema])
def test_the_schema_is_one(made: Callable[[], dict[str, Any]]) -> None:
    """Each schema is valid in the dialect that it names, and can be printed."""
    rules = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    printed = json.loads(json.dumps(made(), allow_nan=False))
    assert [error.message for error in rules.iter_errors(printed)] == []
    assert [error.message for error in rules.iter_errors(made())] == []


def test_sites_of_all_pages_are_taken_by_the_schema() -> None:
    """What the documentation shows can be copied into a file."""
    shown = [
        (page.name, tomllib.loads(block))
        for page in sorted(PAGE.parents[1].rglob("*.md"))
        for block in re.findall(r"^```toml\n(\[+site[.\]].*?)^```", page.read_text(), re.M | re.S)
    ]
    assert len({name for name, _ in shown}) >= 5
    for name, document in shown:
        if "url" in document["site"] or "kind" in document["site"]:
            continue  # [site], the only one of a service file
        assert list(SCHEMA.iter_errors(document)) == [], name


def test_attributes_and_storage_are_read(tmp_path: Path) -> None:
    """A storage is relative to the file, unless it is a URL."""
    text = """
    [site.a]
    processors = 1
    storage = "store/a"
    storage_limit = "2 GB"
    storage_rate = "10 MB/s"
    [site.a.attributes]
    OpSys = "LINUX"
    Cores = 8
    Load = 0.5
    Fast = true
    [site.b]
    processors = 1
    storage = "s3://bucket/b"
    """

    a, b = read_sites(written(tmp_path, text))

    assert a.storage == str(tmp_path / "store/a")
    assert (a.storage_limit, a.storage_rate) == (2 * 10**9, 1e7)
    assert a.attributes == {"OpSys": "LINUX", "Cores": 8, "Load": 0.5, "Fast": True}
    assert b.storage == "s3://bucket/b"
    assert list(SCHEMA.iter_errors(tomllib.loads(text))) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('attributes = { "Op-Sys" = 1 }', "site.x.attributes.Op-Sys: expected a name of letters"),
        ("attributes = { Os = 1, OS = 2 }", 'site.x.attributes.OS: is "Os" already'),
        ("attributes = { a = nan }", "site.x.attributes.a: expected a finite number"),
        ('storage_limit = "1 GB"', "site.x.storage_limit: speaks of a storage, and there is none"),
        ('storage = "s"\nstorage_rate = "fast"', "site.x.storage_rate: expected a bandwidth"),
        ('storage = "s"\nstorage_limit = "-1"', "site.x.storage_limit: "),
    ],
)
def test_attributes_and_storage_that_make_no_sense_are_refused(
    lines: str, said: str, tmp_path: Path
) -> None:
    assert said in refusal(tmp_path, f"[site.x]\nprocessors = 1\n{lines}\n")
