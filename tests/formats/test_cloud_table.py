"""Clouds in sites files: what is read, and what is refused where."""

import re
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from bursar.formats.sites_toml import read_sites, sites_schema
from bursar.model.cloud import BillingRules, MachinePrice, MachineType, SpotTerms
from bursar.model.errors import InputError

SCHEMA = Draft202012Validator(sites_schema())

HEAD = '[site.x]\nkind = "cloud"\nprovider = "ec2"\nimage = "ami-1"\n'
MACHINE = '[[site.x.machine]]\ntype = "c5.large"\nprocessors = 2\nmost = 3\nprice = "0.36 USD"\n'
GOOD = HEAD + MACHINE


def written(folder: Path, text: str) -> Path:
    path = folder / "s.toml"
    path.write_text(text)
    return path


def test_a_cloud_is_read(tmp_path: Path) -> None:
    """Machines have prices with source and date; the site has the cheapest of them."""
    more = (
        '[[site.x.machine]]\ntype = "g4"\nprocessors = 8\nmemory = "32 GB"\ngpus = 1\n'
        'price = 7.2\nprice_date = 2026-11-01\nspot = { ceiling = 2, odds = "5%", base = 1 }\n'
    )
    keys = 'region = "eu-central-1"\nminimum = "1 min"\nbilling_unit = "1 h"\n'
    text = HEAD + keys + MACHINE + more

    (site,) = read_sites(written(tmp_path, text))

    assert (site.kind, site.processors, site.currency) == ("cloud", 3 * 2 + 8, "USD")
    # 0.36 USD for 2 processors is 0.18 an hour for each, and 2 for 8 is 0.25.
    assert site.unit_price == pytest.approx(0.18 / 3600)
    assert site.cloud is not None
    assert site.cloud.billing == BillingRules(minimum=60.0, unit=3600.0)
    assert site.cloud.machines[1] == MachineType(
        name="g4",
        processors=8,
        memory=32_000_000_000,
        gpus=1,
        price=MachinePrice(hourly=7.2, source="user", date="2026-11-01"),
        spot=SpotTerms(ceiling=2.0, odds=0.05, base=1),
    )
    assert str(site.cloud.machines[1].price) == "the sites file of 2026-11-01"
    assert SCHEMA.is_valid(tomllib.loads(text.replace("2026-11-01", '"2026-11-01"')))


def test_a_price_that_is_not_given_is_unknown(tmp_path: Path) -> None:
    """An unknown price is never 0."""
    (site,) = read_sites(written(tmp_path, GOOD.replace('price = "0.36 USD"\n', "")))

    assert site.unit_price is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            GOOD.replace('provider = "ec2"\n', ""),
            "site.x.provider: expected the name of a provider",
        ),
        (GOOD.replace('image = "ami-1"\n', ""), "site.x.image: which image"),
        (HEAD, "site.x.machine: which machines"),
        (HEAD + "processors = 3\n" + MACHINE, "s.toml:5: site.x.processors: "),
        (HEAD + 'unit_price = "1 USD/core-hour"\n' + MACHINE, "s.toml:5: site.x.unit_price: mach"),
        (HEAD + "billing_unit = 0\n" + MACHINE, "s.toml:5: site.x.billing_unit: expected a time"),
        (HEAD + 'start_limit = "1 s"\n' + MACHINE, "s.toml:5: site.x.start_limit: is shorter"),
        (HEAD + 'options = { secret = "hunter2" }\n' + MACHINE, "options.secret: credentials do"),
        (HEAD + 'secret_variable = "hunter2!"\n' + MACHINE, "secret_variable: expected the name"),
        (HEAD + 'setup = ["a\\nb"]\n' + MACHINE, r"site.x.setup\[0\]: expected single lines"),
        (GOOD + "spot = { ceiling = 1, price = 2 }\n", r"machine\[0\].spot.price: is above the c"),
        (GOOD.replace("USD", "EUR") + "spot = { ceiling = 1 }\n", r"ceiling: is bid in USD, and"),
        (GOOD + "price_date = 3\n", r"machine\[0\].price_date: expected"),
        (GOOD + MACHINE, r'machine\[1\].type: duplicate type "c5.large"'),
        (
            GOOD + MACHINE.replace("c5", "c6").replace("USD", "EUR"),
            "site.x.currency: names several",
        ),
    ],
)
def test_what_is_wrong_is_told_at_its_place(text: str, expected: str, tmp_path: Path) -> None:
    """One line with file, line and key; a secret is not repeated."""
    with pytest.raises(InputError) as caught:
        read_sites(written(tmp_path, text))

    line = str(caught.value).replace(f"{tmp_path}/", "")
    assert re.search(expected, line), line
    assert "hunter2" not in line
    assert "\n" not in line.partition("\nhint: ")[0]


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    """The file of the secret has mode 0600, or is not used."""
    secret = tmp_path / "aws.toml"
    secret.write_text('key = "k"\nsecret = "hunter2"\n')
    secret.chmod(0o644)
    path = written(tmp_path, HEAD + 'credentials_file = "aws.toml"\n' + MACHINE)

    with pytest.raises(InputError, match="may be read by others, its mode is 0644") as caught:
        read_sites(path)
    assert "hunter2" not in str(caught.value)

    secret.chmod(0o600)
    (site,) = read_sites(path)
    assert site.cloud is not None
    assert site.cloud.credentials_file == str(secret)
    assert "hunter2" not in repr(site)


@pytest.mark.parametrize(
    ("minimum", "unit", "seconds", "expected"),
    [
        (60.0, 1.0, 0.0, 60.0),
        (60.0, 1.0, 60.2, 61.0),
        (0.0, 3600.0, 1.0, 3600.0),
        (0.0, 3600.0, 3600.0, 3600.0),
        (0.0, 3600.0, 3600.5, 7200.0),
        (0.0, 1.0, 0.0, 1.0),
    ],
)
def test_time_is_billed_by_minimum_and_unit(
    minimum: float, unit: float, seconds: float, expected: float
) -> None:
    """At least the minimum and one unit, rounded up to whole units."""
    assert BillingRules(minimum=minimum, unit=unit).billed(seconds) == expected
