"""How a service is reached."""

import ssl
from pathlib import Path

import pytest

from bursar.model.errors import InputError
from bursar.remote.access import Access, read_token, token_from


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"]
)
def test_plain_http_goes_to_this_machine(url: str) -> None:
    """No one else can listen there."""
    assert Access(url=url).tls() is None


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org",
        "http://127.0.0.1.example.org",
        "http://10.0.0.1:8000",
        "http://localhost.example.org",
    ],
)
def test_plain_http_goes_nowhere_else(url: str) -> None:
    """A token would travel in clear."""
    with pytest.raises(InputError, match="this machine only"):
        Access(url=url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "ftp://example.org",
        "https://",
        "https://example.org:port",
        "https://example.org:99999",
        "https://example.org?x=1",
        "https://example.org/#x",
        "https://exa mple.org",
        "https://example.org\r\nHost: x",
        "https://[::1",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """In one line that says what is expected."""
    with pytest.raises(InputError, match="expected https://HOST:PORT"):
        Access(url=url)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    """It would end up in logs."""
    with pytest.raises(InputError) as refused:
        Access(url="https://ann:s3cret@example.org")
    assert "s3cret" not in str(refused.value)


def test_the_token_is_not_shown() -> None:
    """Whoever prints what it holds."""
    assert "s3cret" not in repr(Access(url="https://example.org", token="s3cret"))


@pytest.mark.parametrize("token", ["two words", "line\nend", "nul\0", "gr\u00fc\u00df", "x" * 5000])
def test_a_token_that_fits_no_header_is_refused(token: str) -> None:
    """And not repeated either."""
    with pytest.raises(InputError) as refused:
        Access(url="https://example.org", token=token)
    assert token not in str(refused.value)


def test_the_name_is_host_and_port_without_another() -> None:
    """As people know it."""
    assert Access(url="https://example.org:8443/").name == "example.org:8443"
    assert Access(url="https://[::1]:8443").name == "[::1]:8443"
    assert Access(url="https://example.org", name="physics").name == "physics"


@pytest.mark.parametrize("fingerprint", ["12", "zz" * 32, "ab" * 33])
def test_a_fingerprint_that_is_none_is_refused(fingerprint: str) -> None:
    """A pin that never matches would be found out too late."""
    with pytest.raises(InputError, match="64 hexadecimal digits"):
        Access(url="https://example.org", fingerprint=fingerprint)


def test_a_fingerprint_may_have_colons() -> None:
    """As openssl prints it."""
    access = Access(url="https://example.org", fingerprint=":".join(["AB"] * 32))
    assert access.pin == b"\xab" * 32


def test_certificates_need_tls(tmp_path: Path) -> None:
    """They would be ignored without a word."""
    with pytest.raises(InputError, match="certificates need https"):
        Access(url="http://localhost:1", ca=tmp_path / "ca.pem")


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    """Both what is not there and what is something else."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing\n")
    for options in (
        {"ca": tmp_path / "gone.pem"},
        {"ca": wrong},
        {"certificate": wrong},
        {"certificate": tmp_path / "gone.pem"},
    ):
        with pytest.raises(InputError, match=r"wrong\.pem|gone\.pem"):
            Access(url="https://example.org", **options).tls()


def test_tls_is_new_and_checks_names() -> None:
    """Nothing older than 1.3, and no server without a certificate of its name."""
    context = Access(url="https://example.org").tls()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_the_token_comes_from_the_environment(tmp_path: Path) -> None:
    """Itself, or in a file; never from a command line."""
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert token_from({"BURSAR_TOKEN": "itself"}) == ("itself", "BURSAR_TOKEN")
    assert token_from({"BURSAR_TOKEN_FILE": str(file)}) == (
        "from-file",
        f"BURSAR_TOKEN_FILE, {file}",
    )
    assert token_from({}) == ("", "neither BURSAR_TOKEN nor BURSAR_TOKEN_FILE is set")
    with pytest.raises(InputError, match=r"^BURSAR_TOKEN_FILE: /gone: cannot read"):
        token_from({"BURSAR_TOKEN_FILE": "/gone"})


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """With what helps; whoever sets the environment looks after its files."""
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    file.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        read_token(file)
    assert token_from({"BURSAR_TOKEN_FILE": str(file)}).token == "s3cret"
    file.chmod(0o600)
    assert read_token(file) == "s3cret"


def test_a_token_file_without_a_token_is_named(tmp_path: Path) -> None:
    """Also one that is not there, or no text."""
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    for path in (empty, binary, tmp_path / "gone"):
        with pytest.raises(InputError, match=path.name):
            read_token(path)
