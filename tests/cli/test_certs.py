"""``bursar certs``: what it makes, what it says, what it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bursar.cli.administration import register_certs
from bursar.model.errors import BursarError, InputError
from bursar.sealing.task_sealing import make_opener, read_sealer

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "certs.md"


class Authority:
    """The command group over one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._app = typer.Typer()
        register_certs(self._app)
        self._app.command("other")(lambda: None)

    def says(self, *words: str) -> tuple[str, str]:
        """What a command prints: data and talk; its error is raised."""
        runner = CliRunner(env={"BURSAR_CERTS": str(self.folder), "COLUMNS": "200"})
        result = runner.invoke(self._app, ["certs", *words], catch_exceptions=True)
        if isinstance(result.exception, BursarError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    def json(self, *words: str) -> dict[str, Any]:
        """What it prints with ``--json``."""
        found: dict[str, Any] = json.loads(self.says(*words, "--json")[0])
        return found


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """One that has been made."""
    made = Authority(tmp_path / "certs")
    made.says("init")
    return made


def test_from_nothing_to_sealed_tasks(authority: Authority) -> None:
    """
    The files that the commands make are those that both ends of sealing read.
    """
    worker, user = authority.json("worker", "pool"), authority.json("user", "ann")
    sealer = read_sealer(
        Path(worker["certificate"]).read_bytes(),
        certificate=Path(user["identity"]),
        authorities=authority.folder / "ca.pem",
    )

    opened = make_opener(Path(worker["identity"]).read_bytes()).open(sealer.seal(b"x", "about"))
    assert (opened.payload, opened.user) == (b"x", "ann")
    assert sealer.open(opened.seal(b"y"), "about") == b"y"


def test_no_command_prints_a_key(authority: Authority) -> None:
    """
    They are in files, and nowhere else.
    """
    for words in (
        ("server", "deef", "--host", "localhost"),
        ("user", "ann"),
        ("renew", "user", "ann"),
        ("show", str(authority.folder / "user-ann.pem")),
        ("show", str(authority.folder / "authority-1.pem")),
        ("list",),
        ("revoke", "user", "ann"),
        ("rotate",),
        ("retire",),
    ):
        for text in authority.says(*words):
            assert "PRIVATE" not in text
            assert "BEGIN" not in text


def test_the_list_tells_what_became_of_each(authority: Authority) -> None:
    """
    By kind, name and state, with the serial number by which one is revoked.
    """
    authority.says("user", "ann")
    authority.says("renew", "user", "ann")
    first, second = authority.json("list")["certificates"]
    (revoked,) = authority.json("revoke", "--serial", first["serial"].upper())["revoked"]

    assert revoked["serial"] == first["serial"]
    states = {each["serial"]: each["state"] for each in authority.json("list")["certificates"]}
    assert states == {first["serial"]: "revoked", second["serial"]: "good"}
    assert first["serial"] in authority.says("list")[0]


def test_every_key_is_documented(authority: Authority, tmp_path: Path) -> None:
    """
    A reader of the page knows all there is.
    """
    page = set(re.findall(r"\w+", REFERENCE.read_text()))
    for words in (
        ("user", "ann"),
        ("server", "deef"),
        ("renew", "user", "ann"),
        ("list",),
        ("show", str(authority.folder / "ca.pem")),
        ("revoke", "user", "ann"),
        ("rotate",),
        ("retire",),
        ("init", "--folder", str(tmp_path / "other")),
    ):
        document = authority.json(*words)
        keys = set(document).union(*(each for each in document.get("certificates", ())))
        assert keys <= page, keys - page


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("init",), "there is an authority already"),
        (("user", "a b"), "expected a name"),
        (("server", "deef", "--host", "a b"), "expected a host name"),
        (("user", "eve", "--days", "nan"), "at most 36500 days, got nan"),
        (("user", "eve", "--days", "0"), "at most 36500 days, got 0"),
        (("rotate", "--days", "1e9"), "at most 36500 days"),
        (("renew", "user", "nobody"), 'no certificate was issued to a user "nobody"'),
        (("revoke", "user", "nobody"), "there is no good certificate of a user nobody"),
        (("revoke", "--serial", "12"), "there is no good certificate of serial number 12"),
        (("revoke",), "expected KIND and NAME, or --serial"),
        (("revoke", "user"), "expected KIND and NAME, or --serial"),
        (("revoke", "user", "ann", "--serial", "12"), "expected KIND and NAME, or --serial"),
        (("show", "/dev/null"), "expected a certificate in PEM"),
        (("list", "--folder", "/nonexistent"), "there is no authority here"),
    ],
)
def test_bad_input_is_one_clear_line(
    authority: Authority, words: tuple[str, ...], reason: str
) -> None:
    """
    And changes nothing.
    """
    before = sorted(authority.folder.rglob("*"))
    with pytest.raises(InputError, match=reason):
        authority.says(*words)
    assert sorted(authority.folder.rglob("*")) == before
