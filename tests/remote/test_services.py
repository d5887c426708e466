"""Services by name and by URL."""

from pathlib import Path

import pytest

from bursar.model.errors import InputError
from bursar.remote.access import find_service, services_file

FILE = """\
[service.physics]
url = "https://physics.example.org:8443"
token_file = "physics.token"
ca = "ca.pem"

[service.here]
url = "http://127.0.0.1:8899"

[service.sealed]
url = "https://sealed.example.org"
ca = "ca.pem"
certificate = "me.pem"
seal = "message"
"""


@pytest.fixture
def known(tmp_path: Path) -> dict[str, str]:
    """Environment with a file of services."""
    (tmp_path / "services.toml").write_text(FILE)
    (tmp_path / "physics.token").write_text("s3cret\n")
    (tmp_path / "physics.token").chmod(0o600)
    return {"BURSAR_SERVICES": str(tmp_path / "services.toml")}


def test_a_service_is_known_by_its_name(known: dict[str, str], tmp_path: Path) -> None:
    """Paths are relative to the file."""
    service = find_service("physics", known)
    assert service.access.url == "https://physics.example.org:8443"
    assert service.access.name == "physics"
    assert service.access.token == "s3cret"
    assert service.access.ca == tmp_path / "ca.pem"
    assert service.seal is None
    assert find_service("sealed", known).seal == "message"


def test_its_url_names_it_too(known: dict[str, str]) -> None:
    """With all that the file says of it."""
    assert find_service("https://physics.example.org:8443/", known).access.token == "s3cret"


def test_a_url_that_two_have_is_refused(tmp_path: Path) -> None:
    """One service by two accounts, say: their names tell them apart, the URL does not."""
    file = tmp_path / "services.toml"
    file.write_text(
        '[service.ann]\nurl = "https://x.org:1"\n[service.root]\nurl = "https://X.org:1/"\n'
    )
    environment = {"BURSAR_SERVICES": str(file)}
    for url in ("https://x.org:1", "HTTPS://x.org:1/"):
        with pytest.raises(InputError, match=r"2 services of .* have this URL: ann, root"):
            find_service(url, environment)
    assert find_service("root", environment).access.name == "root"
    file.write_text('[service.ann]\nurl = "https://x.org"\n[service.ann]\nurl = "https://y.org"\n')
    with pytest.raises(InputError, match=r"services\.toml:3:.* is not TOML"):
        find_service("ann", environment)


def test_where_a_token_was_looked_for_is_known(known: dict[str, str], tmp_path: Path) -> None:
    """So that a refusal can name it: a file, a variable, or all places that had none."""
    file = known["BURSAR_SERVICES"]
    where = {name: find_service(name, known).access.token_place for name in ("physics", "here")}
    assert where["physics"] == f"token_file {tmp_path / 'physics.token'}"
    assert where["here"] == (
        f"{file}: service.here names no token_file, and neither BURSAR_TOKEN nor "
        "BURSAR_TOKEN_FILE is set"
    )
    unset = find_service("https://other.example.org", known).access
    assert unset.token_place == (
        f"neither BURSAR_TOKEN nor BURSAR_TOKEN_FILE is set, and {file} has no service of this URL"
    )
    assert unset.setting("certificate") == "BURSAR_CERTIFICATE"
    of_file = find_service("sealed", known).access
    assert of_file.setting("certificate") == f'"certificate" of {file}: service.sealed'
    assert of_file.token_place == f"{file}: service.sealed names no token_file"
    for name, place in (("here", "BURSAR_TOKEN"), ("physics", "physics.token")):
        (tmp_path / "physics.token").write_text("two words\n")
        with pytest.raises(InputError, match=place):
            find_service(name, known | {"BURSAR_TOKEN": "two words"})


def test_of_another_url_the_environment_says_the_rest(tmp_path: Path) -> None:
    """Where there is no file at all."""
    environment = {
        "BURSAR_SERVICES": str(tmp_path / "none.toml"),
        "BURSAR_TOKEN": "mine",
        "BURSAR_CA": "/x/ca.pem",
        "BURSAR_CERTIFICATE": "/x/me.pem",
    }
    access = find_service("https://other.example.org", environment).access
    assert access.token == "mine"
    assert (access.ca, access.certificate, access.key) == (
        Path("/x/ca.pem"),
        Path("/x/me.pem"),
        None,
    )


def test_the_environments_token_goes_where_nothing_else_is_said(known: dict[str, str]) -> None:
    """Not to a service that has a token or a certificate of its own."""
    known = known | {"BURSAR_TOKEN": "other"}
    assert find_service("here", known).access.token == "other"
    assert find_service("physics", known).access.token == "s3cret"
    assert find_service("sealed", known).access.token == ""


def test_the_only_one_needs_no_name(tmp_path: Path) -> None:
    """With two, one is to be chosen."""
    file = tmp_path / "services.toml"
    environment = {"BURSAR_SERVICES": str(file)}
    with pytest.raises(InputError, match="name a service"):
        find_service(None, environment)
    file.write_text('[service.only]\nurl = "http://localhost:1"\n')
    assert find_service(None, environment).access.name == "only"
    file.write_text(FILE)
    with pytest.raises(InputError, match="physics, here, sealed"):
        find_service(None, environment)


def test_a_name_that_is_not_there_is_told_with_the_nearest(known: dict[str, str]) -> None:
    """In one line."""
    with pytest.raises(InputError, match='did you mean "physics"'):
        find_service("physic", known)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("service = 1", "service"),
        ("[service.a]", r"service\.a"),
        ('[service.a]\nurl = "https://x.org"\ntokenfile = "x"', r":3: service\.a\.tokenfile"),
        ('[service.a]\nurl = "ftp://x"', r"service\.a: url"),
        ('[service.a]\nurl = "http://x.org"', r"service\.a: url: plain http"),
        ('[service.a]\nurl = "https://x.org"\nseal = "message"', r"service\.a\.seal"),
        ('[service.a]\nurl = "https://x.org"\nseal = "x"', r"service\.a\.seal"),
        ('[service.a]\nurl = "https://x.org"\ntoken_file = "gone"', "gone"),
        ("[service", "is not TOML"),
    ],
)
def test_what_is_wrong_with_the_file_is_told_with_its_place(
    text: str, place: str, tmp_path: Path
) -> None:
    """File, line where it can be told, and key."""
    file = tmp_path / "services.toml"
    file.write_text(text + "\n")
    with pytest.raises(InputError, match=place) as refused:
        find_service("a", {"BURSAR_SERVICES": str(file)})
    assert str(tmp_path) in str(refused.value)


def test_the_file_lies_where_configuration_does() -> None:
    """As the XDG base directory specification has it."""
    assert services_file({"XDG_CONFIG_HOME": "/c"}) == Path("/c/bursar/services.toml")
    assert services_file({}) == Path("~/.config/bursar/services.toml").expanduser()
