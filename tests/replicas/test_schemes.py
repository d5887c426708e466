"""Copies in S3 (of moto) and behind SSH (of paramiko), read and written."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.replicas.servers import an_sftp, sha256

from bursar.replicas.content import (
    CancellationToken,
    LogicalFileContent,
    SourceFailed,
    TargetFailed,
    redact_url,
)
from bursar.replicas.copying import copy, read_content
from bursar.replicas.parts import PartialFile
from bursar.replicas.site_storage import UrlStorage

BODY = random.Random(2).randbytes(9_000_000)
WHOLE = LogicalFileContent(len(BODY), sha256(BODY))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """URL of an empty bucket; where it is and its keys are in the environment."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("NO_PROXY", "*")
        client = boto3.client("s3")
        client.create_bucket(Bucket="shelf")
        client.put_object(Bucket="shelf", Key="in/x", Body=BODY)
        yield "s3://shelf"
        client.close()
    server.stop()


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Beginning of the URLs of a server that is known, with a password."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        with an_sftp(home) as url:
            yield url


@pytest.fixture
def part(tmp_path: Path) -> Iterator[PartialFile]:
    """An empty one."""
    (tmp_path / "parts").mkdir()
    with PartialFile(tmp_path / "parts", "x") as part:
        yield part


def fetch(url: str, part: PartialFile, content: LogicalFileContent = WHOLE) -> LogicalFileContent:
    """A copy as fast as it goes."""
    return copy(url, content, part, stop=CancellationToken(), patience=5.0)


def fail(url: str, part: PartialFile) -> SourceFailed:
    """How it fails."""
    with pytest.raises(SourceFailed) as caught:
        fetch(url, part)
    return caught.value


def put(depot: UrlStorage, source: Path, name: str) -> None:
    """Writes a file there."""
    incoming = depot.begin(name, WHOLE, lambda *_: True)
    assert incoming is not None
    incoming.commit(
        copy(str(source), WHOLE, incoming.sink, stop=CancellationToken()), lambda *_: True
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of this machine."""
    path = tmp_path / "source"
    path.write_bytes(BODY)
    return path


def test_an_object_is_read(bucket: str, part: PartialFile) -> None:
    """From its beginning, and from where a part ends."""
    assert fetch(f"{bucket}/in/x", part, LogicalFileContent()) == WHOLE


def test_an_object_is_gone_on_with(bucket: str, part: PartialFile) -> None:
    """The second half only: the part has the right beginning already."""
    part.take_up(WHOLE)
    part.write(BODY[:4_000_000])
    assert fetch(f"{bucket}/in/x", part) == WHOLE


def test_an_object_that_is_not_there_is_a_bad_copy(bucket: str, part: PartialFile) -> None:
    """And so is one of another size."""
    assert fail(f"{bucket}/in/nothing", part).bad
    with pytest.raises(SourceFailed, match="has 9000000 bytes, not 3"):
        fetch(f"{bucket}/in/x", part, LogicalFileContent(3))


@pytest.mark.ci
def test_an_object_is_written_whole_or_not_at_all(bucket: str, source: Path) -> None:
    """One that was given up is not to be seen; one that is there is not written again."""
    depot = UrlStorage(f"{bucket}/out", patience=5.0)
    given_up = depot.begin("a/given up", WHOLE, lambda *_: True)
    assert given_up is not None
    given_up.sink.write(BODY)
    given_up.close()
    put(depot, source, "a/kept")

    assert read_content(f"{bucket}/out/a/kept", stop=CancellationToken()) == WHOLE
    with pytest.raises(SourceFailed, match="is not there"):
        read_content(f"{bucket}/out/a/given up", stop=CancellationToken())
    assert depot.begin("a/kept", WHOLE, lambda *_: True) is None


def test_a_bucket_without_credentials_says_so(
    bucket: str, part: PartialFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In our words."""
    import s3fs

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()

    assert "needs credentials" in fail(f"{bucket}/in/x", part).reason
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_file_behind_ssh_is_read(ssh: str, part: PartialFile, source: Path) -> None:
    """And its password is not in what is noted of it."""
    assert fetch(f"{ssh}{source}", part, LogicalFileContent()) == WHOLE
    assert "s3cret" not in part.origin.url
    assert "ann@" in part.origin.url


@pytest.mark.ci
def test_a_file_behind_ssh_is_gone_on_with(ssh: str, part: PartialFile, source: Path) -> None:
    """From where the part ends."""
    part.take_up(WHOLE)
    part.write(BODY[:4_000_000])
    assert fetch(f"{ssh}{source}", part) == WHOLE


def test_a_file_behind_ssh_is_written(ssh: str, source: Path, tmp_path: Path) -> None:
    """Its folders are made, and nothing lies beside it."""
    depot = UrlStorage(f"{ssh}{tmp_path}/out", patience=5.0)
    put(depot, source, "a/b")
    given_up = depot.begin("a/c", WHOLE, lambda *_: True)
    assert given_up is not None
    given_up.sink.write(BODY)
    given_up.close()

    assert (tmp_path / "out/a/b").read_bytes() == BODY
    assert [path.name for path in (tmp_path / "out/a").iterdir()] == ["b"]


def test_what_ssh_refuses_is_said_without_the_password(
    ssh: str, part: PartialFile, tmp_path: Path, source: Path
) -> None:
    """A wrong one, a file that is not there, one that may not be written."""
    wrong = fail(ssh.replace("s3cret", "wr0ng") + "/x", part)
    assert wrong.reason == "does not accept our keys or password"
    assert fail(f"{ssh}{tmp_path}/nothing", part).bad
    assert fail(f"{ssh}{tmp_path}", part).bad
    (tmp_path / "file").touch()
    with pytest.raises(TargetFailed) as caught:
        put(UrlStorage(f"{ssh}{tmp_path}/file", patience=5.0), source, "x")
    assert "s3cret" not in str(caught.value)


def test_a_host_that_is_not_known_is_not_trusted(
    part: PartialFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password is not told to whoever answers."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with an_sftp(tmp_path, known=False) as url:
        found = fail(f"{url}/x", part)

    assert found.reason == "is no host that ~/.ssh/known_hosts knows"
    assert redact_url(f"{url}/x").startswith("ssh://ann@127.0.0.1:")
