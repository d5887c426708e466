"""Dask clusters in sites files: what is read, and what is refused where."""

import re
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from bursar.formats.sites_toml import read_sites, sites_schema
from bursar.model.errors import InputError
from bursar.model.site import DaskEndpoint

SCHEMA = Draft202012Validator(sites_schema())

HEAD = '[site.x]\nkind = "dask"\n'
CLEAR = HEAD + 'processors = 8\nscheduler = "tcp://head:8786"\n'
TLS = (
    HEAD + 'processors = 8\nscheduler = "tls://[::1]:8786"\n'
    'ca = "ca.pem"\ncertificate = "me.pem"\nkey = "key.pem"\n'
)


def written(folder: Path, text: str) -> Path:
    """A sites file beside its certificates."""
    for name in ("ca.pem", "me.pem", "key.pem"):
        (folder / name).touch()
    path = folder / "s.toml"
    path.write_text(text)
    return path


def test_a_cluster_is_read(tmp_path: Path) -> None:
    """Its address, and its certificates relative to the file."""
    (clear,) = read_sites(written(tmp_path, CLEAR))
    (secure,) = read_sites(written(tmp_path, TLS))

    assert (clear.kind, clear.processors) == ("dask", 8)
    assert clear.dask == DaskEndpoint(scheduler="tcp://head:8786")
    assert secure.dask == DaskEndpoint(
        scheduler="tls://[::1]:8786",
        ca=str(tmp_path / "ca.pem"),
        certificate=str(tmp_path / "me.pem"),
        key=str(tmp_path / "key.pem"),
    )
    assert clear.remote is None
    assert not clear.is_shared
    for text in (CLEAR, TLS):
        assert SCHEMA.is_valid(tomllib.loads(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "processors = 1\n", "s.toml:1: site.x.scheduler: expected the address"),
        (CLEAR.replace("tcp:", "http:"), "s.toml:4: site.x.scheduler: expected the address"),
        (CLEAR.replace(":8786", ""), "site.x.scheduler: expected the address"),
        (CLEAR.replace("8786", "0"), "site.x.scheduler: expected the address"),
        (CLEAR.replace("8786", "65536"), "site.x.scheduler: expected the address"),
        (CLEAR.replace("head", "a b"), "site.x.scheduler: expected the address"),
        (CLEAR.replace("processors = 8\n", ""), "site.x.processors: how many processors"),
        (CLEAR + 'ca = "ca.pem"\n', "s.toml:5: site.x.ca: goes with a tls:// scheduler only"),
        (TLS.replace('key = "key.pem"\n', ""), "site.x.key: a tls:// scheduler needs it"),
        (TLS.replace("me.pem", "no.pem"), "s.toml:6: site.x.certificate: no file .*no.pem"),
        (CLEAR.replace("dask", "local"), "site.x.scheduler: goes with a Dask cluster only"),
        ('[site.x]\nca = "ca.pem"\n', "s.toml:2: site.x.ca: goes with a Dask cluster or"),
        (CLEAR + 'queue = "main"\n', "s.toml:5: site.x.queue: "),
        (CLEAR + 'url = "https://a:1"\n', "s.toml:5: site.x.url: "),
    ],
)
def test_what_is_wrong_is_told_at_its_place(text: str, expected: str, tmp_path: Path) -> None:
    """One line with file, line and key."""
    with pytest.raises(InputError) as caught:
        read_sites(written(tmp_path, text))

    line = str(caught.value).replace(f"{tmp_path}/", "")
    assert re.search(expected, line), line
    assert "\n" not in line.partition("\nhint: ")[0]
