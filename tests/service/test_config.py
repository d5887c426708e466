"""Service files: what is said is what is meant, and what is wrong is told at its place."""

import os
import tomllib
from pathlib import Path

import jsonschema
import msgspec
import pytest

from bursar.model.errors import InputError
from bursar.service.config import Address, ServiceConfig
from bursar.service.config_toml import default_service, read_service, service_schema, state_folder


def read(folder: Path, text: str, **environment: str) -> ServiceConfig:
    path = folder / "service.toml"
    path.write_text(text)
    return read_service(path, environment)


def complaint(folder: Path, text: str, **environment: str) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, text, **environment)
    return str(caught.value).replace(f"{folder}/", "")


WHOLE = """
[service]
name = "uni"
folder = "state"
listen = "127.0.0.1:8000"
names = ["grid.example.org"]
owner = "me"
scrapers = ["prometheus"]

[site]
processors = 4
unit_price = "0.36 EUR/core-hour"
[[site.price]]
kind = "bulk"
steps = [["10 core-hours", 0.5]]

[market]
protocols = ["posted", "tender"]
must_buy = true
price_shared = true
credit = "40 EUR"
validity = "5 min"
floor = "70%"

[users.ann]
scopes = ["submit", "read", "sell"]
groups = ["physics"]
credit = 10
limits = { instances = 50, rate = 2 }

[tasks]
directories = ["/scratch"]
limit = "2 h"
outlives = "1 h"
memory = "4 GB"
open_files = 100

[limits.tasks]
instances = 5
[limits.requests]
rate = 10

[log]
level = "warning"
"""


def test_a_file_says_it_all(tmp_path: Path) -> None:
    """Every section arrives where it belongs, in the units of the model."""
    config = read(tmp_path, WHOLE)

    assert (config.name, config.site.name, config.site.processors) == ("uni", "uni", 4)
    assert config.site.unit_price == pytest.approx(0.0001)
    assert config.site.currency == "EUR"
    assert config.folder == tmp_path / "state"
    assert config.listen == Address("127.0.0.1", 8000)
    assert (config.owner, config.names) == ("me", ("grid.example.org",))
    assert config.scrapers == {"prometheus"}
    assert config.selling.protocols == ("posted", "tender")
    assert (config.selling.must_buy, config.selling.price_shared) == (True, True)
    assert (config.selling.credit, config.selling.validity, config.selling.floor) == (40, 300, 0.7)
    assert config.users["ann"].scopes == {"submit", "read", "sell"}
    assert (config.users["ann"].credit, config.users["ann"].groups) == (10, {"physics"})
    assert (config.limits.limit, config.limits.directories) == (7200, ("/scratch",))
    assert (config.limits.instances, config.http.rate) == (5, 10)
    assert config.own_limits() == {"ann": msgspec.structs.replace(config.limits, instances=50)}
    assert config.own_http() == {"ann": msgspec.structs.replace(config.http, rate=2)}
    assert (config.tasks.outlives, config.tasks.memory, config.tasks.open_files) == (
        3600,
        4_000_000_000,
        100,
    )
    assert config.log.level == "warning"


def test_who_may_do_what_by_a_certificate(tmp_path: Path) -> None:
    """What a user's table says; without one what all users may, or nothing where all are listed."""
    text = "[users.ann]\nscopes = ['admin']\n"

    config = read(tmp_path, text)
    assert config.scopes_of("ann") == {"admin"}
    assert config.scopes_of("bob") == {"submit", "read"}
    mutual = '[service]\nsecurity = "mutual"\nonly_listed_users = true\n'
    for key in ("certificate", "key", "authorities"):
        (tmp_path / key).touch()
        mutual += f'{key} = "{key}"\n'
    config = read(tmp_path, mutual + text)
    assert config.scopes_of("ann") == {"admin"}
    assert config.scopes_of("bob") == frozenset()
    assert "service.only_listed_users: goes with" in complaint(
        tmp_path, "[service]\nonly_listed_users = true"
    )


def test_the_schema_says_what_the_reader_takes(tmp_path: Path) -> None:
    """The whole file is of it; what the reader refuses by its form, it refuses, too."""
    checker = jsonschema.Draft202012Validator(service_schema())
    jsonschema.Draft202012Validator.check_schema(service_schema())
    assert not list(checker.iter_errors(tomllib.loads(WHOLE)))
    assert not list(checker.iter_errors({}))
    for text in (
        "[service]\nlistn = '80'",
        "[service]\nsecurity = 'tsl'",
        "[market]\nprotocols = ['haggle']",
        "[users.ann]\nscopes = ['all']",
        "[tasks]\nlimit = 'soon'",
        "[limits.tasks]\nlimit = 5",
        "[limits.tasks]\ninstances = 0",
        "[users.ann.limits]\nrate = 0",
        "[users.ann.limits]\nkeys = 5",
        "[site]\nprocessors = 0",
    ):
        assert list(checker.iter_errors(tomllib.loads(text))), text
        with pytest.raises(InputError):
            read(tmp_path, text)


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    """A variable is read as TOML, or as text where it is none; a wrong one is named."""
    config = read(
        tmp_path,
        WHOLE,
        BURSAR_SERVICE__SERVICE__LISTEN="[::1]:9",
        BURSAR_SERVICE__LIMITS__TASKS__INSTANCES="7",
        BURSAR_SERVICE__USERS__BOB__SCOPES='["read"]',
        BURSAR_SITE="unrelated",
    )

    assert config.listen == Address("::1", 9)
    assert config.limits.instances == 7
    assert config.users["bob"].scopes == {"read"}
    assert complaint(tmp_path, WHOLE, BURSAR_SERVICE__TASKS__MEMORY="lots").startswith(
        "BURSAR_SERVICE__TASKS__MEMORY: expected a size"
    )
    assert (
        complaint(tmp_path, "", BURSAR_SERVICE__LISTEN="x")
        == "BURSAR_SERVICE__LISTEN: expected BURSAR_SERVICE__SECTION__KEY"
    )
    assert "is no table" in complaint(tmp_path, "log = 3", BURSAR_SERVICE__LOG__LEVEL="info")


def test_without_a_file_it_serves_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To whoever is on it, and to nobody else."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = default_service({})

    assert config.listen.is_loopback
    assert config.security == "none"
    assert config.site.processors == len(os.sched_getaffinity(0))
    assert config.folder == state_folder() == tmp_path / "bursar" / "service"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[service]\nlisten = '0.0.0.0:80'", "service.toml:2: service.listen: without security"),
        ("[service]\nlisten = '80'", 'service.toml:2: service.listen: expected "HOST:PORT"'),
        ("[service]\nlisten = 'localhost:99999'", "service.listen: expected"),
        ("[service]\nlistn = '80'", "service.listn: unknown key"),
        ("[service]\nsecurity = 'tls'", 'service.certificate: security = "tls" needs a file'),
        ("[service]\nsecurity = 'tsl'", 'expected "none" or "tls" or "mutual", got "tsl"'),
        ("[service]\nkey = 'x'", "service.key: goes with security"),
        (
            "[service]\nsecurity = 'tls'\ncertificate = 'nowhere'\nkey = 'nowhere'",
            "service.certificate: no file nowhere",
        ),
        ("[service]\nseal_key = 'x'", "service.seal_certificate: goes together"),
        ("[service]\nsite = 'x'", "service.site: names a site"),
        ("[site]\nkind = 'simulated'\nprocessors = 1", "site.kind: simulated sites cannot"),
        ("[site]\nkind = 'slurm'\nprocessors = 1", "service.worker_listen: workers come from"),
        ("[site]\nprocessors = 0", "site.processors"),
        ("[market]\nprotocols = ['haggle']", 'got "haggle"'),
        ("[market]\nfloor = 2", "market.floor"),
        ("[market]\nvalidity = 0", "market.validity: must be positive"),
        ("[site]\nprocessors = 2\n[market]\nprocessors = 3", "market.processors: the site has 2"),
        ("[market]\nprocessors_per_user = 0", "market.processors_per_user"),
        (
            "[market]\nreserve = '1 EUR/core-hour'",
            "market.reserve: is in EUR, the site counts in SU",
        ),
        (
            "[[market.quotas]]\namount = 0\nevery = '1d'",
            "market.quotas[0].amount: must be positive",
        ),
        ("[[market.quotas]]\namount = '5 EUR'\nevery = 1", "market.quotas[0].amount: expected use"),
        ("[[market.quotas]]\namount = 5", "market.quotas[0]"),
        ("[users.ann]\nlocal_user = 'nobody-has-this'", 'users.ann.local_user: no account "nobody'),
        ("[users.ann]\nscopes = ['all']", 'got "all"'),
        ("[tasks]\ndirectories = ['scratch']", "tasks.directories[0]: expected an absolute path"),
        ("[tasks]\nlimit = 'soon'", "tasks.limit: expected"),
        ("[limits.tasks]\ninstances = 0", "limits.tasks.instances"),
        ("[limits.tasks]\nlimit = 5", "limits.tasks.limit: is said in [tasks]"),
        ("[limits]\ntask = 5", "limits.task: unknown key"),
        ("nonsense", "is not TOML"),
    ],
)
def test_what_is_wrong_is_told_at_its_place(tmp_path: Path, text: str, expected: str) -> None:
    """One line with the file, where it can be told the line, the field, and what was expected."""
    assert expected in complaint(tmp_path, text)


def test_rules_of_the_owner_are_read(tmp_path: Path) -> None:
    """Prices by the processor-second, use by processor-seconds."""
    market = read(
        tmp_path,
        """
[site]
processors = 8
currency = "EUR"

[market]
reserve = "3.6 EUR/core-hour"
buyers = ["ann"]
buyer_groups = ["physics"]
processors = 6
processors_per_user = 4

[[market.quotas]]
amount = "2 core-hours"
every = "1d"
groups = ["physics"]
""",
    ).selling
    assert market.reserve_price == pytest.approx(0.001)
    assert (market.buyers, market.buyer_groups) == ({"ann"}, {"physics"})
    assert (market.processors, market.processors_per_user) == (6, 4)
    (quota,) = market.quotas
    assert (quota.amount, quota.every, quota.groups) == (7_200.0, 86_400.0, {"physics"})


def test_a_service_may_be_of_a_sites_file(tmp_path: Path) -> None:
    """Under the service's own name; a site that is not there is told with those that are near."""
    sites = "[site.uni]\nprocessors = 3\n[site.lab]\nprocessors = 5\n"
    (tmp_path / "sites.toml").write_text(sites)

    config = read(tmp_path, "[service]\nname = 'us'\nsites = 'sites.toml'\nsite = 'lab'")
    assert (config.name, config.site.name, config.site.processors) == ("us", "us", 5)
    assert 'expected one of "uni", "lab"' in complaint(tmp_path, "[service]\nsites = 'sites.toml'")
    assert 'did you mean "lab"?' in complaint(
        tmp_path, "[service]\nsites = 'sites.toml'\nsite = 'lap'"
    )
    assert "there is a [site] already" in complaint(
        tmp_path, "[service]\nsites = 'sites.toml'\n[site]\nprocessors = 1"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may switch users")
def test_tasks_never_run_as_root_for_somebody(tmp_path: Path) -> None:
    """A service that runs as root maps users to others; not on a cluster's nodes."""
    assert read(tmp_path, "[users.ann]\nlocal_user = 'nobody'").local_user("ann") == "nobody"
    # Its own account is no switch.
    assert read(tmp_path, "[users.ann]\nlocal_user = 'root'").local_user("ann") == "root"
    slurm = "[service]\nworker_listen = '0.0.0.0:1'\n[site]\nkind = 'slurm'\nprocessors = 1\n"
    assert "on this machine only" in complaint(tmp_path, f"{slurm}[users.a]\nlocal_user='nobody'")
