"""Other Bursars in sites files: what is read, and what is refused and where."""

import re
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from bursar.formats.sites_toml import read_sites, sites_schema
from bursar.model.errors import InputError
from bursar.model.site import RemoteEndpoint, SiteFacts

SCHEMA = Draft202012Validator(sites_schema())

SITE = '[site.x]\nkind = "remote"\nprocessors = 4\n'

URL = 'url = "https://grid.example.org:7480"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a token and certificates."""
    for name in ("token", "open", "ca.pem", "own.pem", "own.key"):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "open").chmod(0o640)
    return tmp_path


def read(folder: Path, text: str) -> SiteFacts:
    path = folder / "s.toml"
    path.write_text(text)
    (site,) = read_sites(path)
    return site


def test_an_address_is_enough(folder: Path) -> None:
    site = read(folder, SITE + URL)
    assert site.remote == RemoteEndpoint(url="https://grid.example.org:7480")
    assert (site.kind, site.processors, site.is_shared) == ("remote", 4, True)


def test_all_is_read(folder: Path) -> None:
    text = (
        SITE
        + 'url = "https://[::1]:7480/"\ntoken_file = "token"\nca = "ca.pem"\nseal = "message"\n'
        + 'certificate = "own.pem"\nkey = "own.key"\npatience = "1 min"\n'
        + 'trust = "pickle"\n'
        + f'fingerprint = "{"ab" * 32}"\n'
    )
    assert not list(SCHEMA.iter_errors(tomllib.loads(text)))
    assert read(folder, text).remote == RemoteEndpoint(
        url="https://[::1]:7480",
        token_file=str(folder / "token"),
        ca=str(folder / "ca.pem"),
        certificate=str(folder / "own.pem"),
        key=str(folder / "own.key"),
        fingerprint="ab" * 32,
        seal="message",
        patience=60.0,
        trust="pickle",
    )


@pytest.mark.parametrize(
    ("said", "level"), [("true", "conversation"), ("false", None), ('"message"', "message")]
)
def test_seals(folder: Path, said: str, level: str | None) -> None:
    text = SITE + URL + f'ca = "ca.pem"\ncertificate = "own.pem"\nseal = {said}\n'
    remote = read(folder, text).remote
    assert remote is not None
    assert remote.seal == level


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "url", "expected its address"),
        ('url = "ftp://x"\n', "url", "expected its address"),
        ('url = "https://me:word@x"\n', "url", "expected its address"),
        ('url = "https://x/path"\n', "url", "expected its address"),
        (URL + 'token_file = "none"\n', "token_file", "no file"),
        (URL + 'token_file = "open"\n', "token_file", "may be read by others, its mode is 0640"),
        (URL + 'ca = "none"\n', "ca", "no file"),
        (URL + 'key = "own.key"\n', "key", "needs its certificate"),
        (URL + 'fingerprint = "abc"\n', "fingerprint", "64 hexadecimal digits"),
        (URL + "seal = true\n", "seal", 'needs "ca" and "certificate"'),
        (URL + 'seal = "much"\n', "seal", "expected"),
        (URL + 'patience = "soon"\n', "patience", "expected a time"),
        (URL + 'trust = "signed"\n', "trust", 'expected "data" or "pickle", got "signed"'),
        (URL + "trust = true\n", "trust", "expected"),
        ('url = "http://127.0.0.1:1"\nca = "ca.pem"\n', "ca", "https:// address only"),
        (URL + 'queue = "q"\n', "queue", "batch scheduler"),
        (URL + 'scheduler = "tcp://x:1"\n', "scheduler", "Dask"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, text: str, where: str, what: str) -> None:
    with pytest.raises(InputError, match=re.escape(what)) as refused:
        read(folder, SITE + text)
    assert f"site.x.{where}" in refused.value.where


@pytest.mark.parametrize(("said", "trust"), [("", "data"), ("data", "data"), ("pickle", "pickle")])
def test_pickles_are_trusted_only_where_the_file_says_so(
    folder: Path, said: str, trust: str
) -> None:
    site = read(folder, SITE + URL + (f'trust = "{said}"\n' if said else ""))
    assert site.remote is not None
    assert site.remote.trust == trust
    assert site.sends_pickles == (trust == "pickle")
    assert SiteFacts(name="here").sends_pickles
    assert not SiteFacts(name="there", kind="slurm", batch=None).sends_pickles


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ('"local"', 'set kind = "remote"'),
        ('"slurm"', 'set kind = "remote"'),
        ('"dask"\nscheduler = "tcp://x:1"', "loads pickles whatever is said here"),
    ],
)
def test_trust_goes_with_another_bursar_only(folder: Path, kind: str, hint: str) -> None:
    with pytest.raises(InputError, match="goes with another Bursar only") as refused:
        read(folder, f'[site.x]\nprocessors = 1\nkind = {kind}\ntrust = "data"\n')
    assert refused.value.where.endswith("site.x.trust")
    assert hint in refused.value.hint


def test_it_goes_with_another_bursar_only(folder: Path) -> None:
    with pytest.raises(InputError, match="goes with another Bursar only") as refused:
        read(folder, '[site.x]\nprocessors = 1\nurl = "https://x"\n')
    assert refused.value.where.endswith("site.x.url")


def test_a_password_is_not_said_again(folder: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(folder, SITE + 'url = "https://me:geheim@x"\n')
    assert "geheim" not in str(refused.value)
