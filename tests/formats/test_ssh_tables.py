"""Sites that are lists of machines, in sites files and inventories."""

from pathlib import Path

import pytest

from bursar.formats.sites_toml import read_sites
from bursar.formats.ssh_tables import parse_inventory
from bursar.model.errors import InputError
from bursar.model.provisioning import SshHost


def test_an_inventory_has_a_host_a_line() -> None:
    """Comments and empty lines are skipped; processors, memory and port may be stated."""
    text = "# lab\nann@node1 processors=8 memory=16GB port=2222 # the large one\n\nnode2\n"

    assert parse_inventory(text) == (
        SshHost(name="ann@node1", processors=8, memory=16_000_000_000, port=2222),
        SshHost(name="node2"),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no host"),
        ("node1\nnode2 cores=8\n", 'line 2: .*got "cores=8"'),
        ("node1 processors=0\n", "line 1: processors: "),
        ("node1 port=1 port=2\n", "each once"),
        ("-oProxyCommand=x\n", "line 1: host: expected user@host or host"),
    ],
)
def test_a_wrong_inventory_says_where(text: str, complaint: str) -> None:
    """Each error names the line, and nothing that ssh would take for an option passes."""
    with pytest.raises(InputError) as error:
        parse_inventory(text)
    assert error.match(complaint)


def sites(folder: Path, *lines: str) -> Path:
    """Write a sites file of one site."""
    file = folder / "sites.toml"
    file.write_text("\n".join(["[site.lab]", 'kind = "ssh"', *lines]))
    return file


def test_hosts_are_words_or_tables(tmp_path: Path) -> None:
    """Both forms may stand in one list; the processors stated are added up."""
    hosts = 'hosts = [{ host = "n1", processors = 3 }, { host = "ann@n2", processors = 4 }]'

    (site,) = read_sites(sites(tmp_path, hosts, "shared = false"))

    assert (site.kind, site.processors) == ("ssh", 7)
    assert site.ssh is not None
    assert [host.label for host in site.ssh.hosts] == ["n1", "ann@n2"]
    assert not site.ssh.shared


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "a list of machines needs hosts"),
        (['hosts = ["n1", "n1"]'], 'names "n1" twice'),
        (['hosts = ["-n1"]'], r"hosts\[0\]"),
        (['hosts = ["n1"]', 'inventory = "h.txt"'], "not both"),
        (['inventory = "h.txt"'], "no file"),
        (['hosts = ["n1"]', 'jump = "-x"'], "jump"),
        (['hosts = ["n1"]', "reverse = true", 'reach = "me"'], "reach"),
        (['hosts = ["n1"]', "processors = 3"], "processors"),
    ],
)
def test_a_wrong_table_says_where(tmp_path: Path, lines: list[str], complaint: str) -> None:
    """Each error is one line with the field."""
    with pytest.raises(InputError) as error:
        read_sites(sites(tmp_path, *lines))
    assert error.match(complaint)
