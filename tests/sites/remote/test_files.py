"""Files between a run and an instance, by a service that may mean no good."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bursar.dispatch.wire import WireJob
from bursar.model.task import Copy, Outcome, Status
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import FileInfo, Problem
from bursar.sites.remote.remote_files import InstanceFileIndex, RemoteInstanceFiles
from bursar.worker.staging import RootNamespace, StagingError


class Session:
    """An instance's files, by name, and what was done with them."""

    def __init__(self, handle: str = "one", **others: "Session") -> None:
        self.handle = handle
        self.others = others
        self.there: dict[str, bytes] = {}
        self.uploads: list[tuple[str, bool]] = []

    async def upload(self, name: str, source: Path, *, executable: bool = False) -> None:
        self.there[name] = source.read_bytes()
        self.uploads.append((name, executable))

    async def copy_files(self, source: str, names: list[str], *, wait: float) -> list[FileInfo]:
        if source not in self.others:
            raise RemoteProblem("there", Problem(title="", status=404, type="/problems/not-found"))
        files = self.others[source].there
        found = [name for name in names if name in files]
        self.there |= {name: files[name] for name in found}
        return [FileInfo(name=name, size=1) for name in found]

    async def download(self, name: str, target: Path) -> int:
        if name not in self.there:
            problem = Problem(title="", status=404, type="/problems/not-found")
            raise RemoteProblem("there", problem)
        return target.write_bytes(self.there[name])

    async def files(self) -> list[FileInfo]:
        return [FileInfo(name=name, size=1) for name in self.there]


def job(*steps: Any, **more: Any) -> WireJob:
    return WireJob(task=1, attempt=1, processors=1, limit=0.0, folder="1-x", steps=steps, **more)


DONE = Outcome(task=1, attempt=1, status=Status.SUCCEEDED)


class Place:
    """The run's folders, and an instance's files."""

    def __init__(self, folder: Path) -> None:
        self.campaign, self.made = folder / "campaign", folder / "files"
        for part in (self.campaign, self.made):
            part.mkdir()
        self.session = Session()
        self.siblings = InstanceFileIndex()
        self.files = self.instance(self.session)

    def instance(self, session: Session) -> RemoteInstanceFiles:
        """One more of the service's."""
        root = RootNamespace(str(self.campaign), str(self.made))
        return RemoteInstanceFiles(session, self.siblings, root, self.campaign.parent)  # type: ignore[arg-type]

    def fetch(self, job: WireJob) -> None:
        asyncio.run(self.files.fetch(job, 0, DONE, succeeded=True))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_each_content_goes_there_once(place: Place) -> None:
    """Again only when it has changed; what was made there is there."""
    (place.campaign / "in").write_text("one")
    (place.campaign / "tool").write_text("x")
    (place.campaign / "tool").chmod(0o755)
    reads = job(inputs=("in", "tool"))

    async def send() -> None:
        for _ in range(2):
            assert await place.files.send([reads, reads]) == {}
        (place.campaign / "in").write_text("other")
        assert await place.files.send([reads]) == {}
        place.session.there["out"] = b"made"
        await place.files.fetch(job(outputs=("out",)), 0, DONE, succeeded=True)
        assert await place.files.send([job(inputs=("out",))]) == {}

    asyncio.run(send())
    assert place.session.uploads == [("in", False), ("tool", True), ("in", False)]
    assert (place.made / "out").read_bytes() == b"made"


def test_what_another_instance_has_is_not_sent_again(place: Place) -> None:
    """
    Neither what was sent there nor what was made there, as long as it is the same here; also
    where both begin at once. What it has no more is sent.
    """
    for name in ("in", "changes", "lost"):
        (place.campaign / name).write_text("one")
    second = Session("two", one=place.session)
    place.session.others["two"] = second
    reads = job(inputs=("in", "changes", "lost", "out"))

    async def send() -> None:
        place.session.there["out"] = b"made"
        await place.files.fetch(job(outputs=("out",)), 0, DONE, succeeded=True)
        other = place.instance(second)
        await asyncio.gather(place.files.send([reads]), other.send([job(inputs=("in",))]))
        (place.campaign / "changes").write_text("other")
        del place.session.there["lost"]
        assert await other.send([reads]) == {}

    asyncio.run(send())
    uploads = [name for name, _ in place.session.uploads + second.uploads]
    assert sorted(uploads) == ["changes", "changes", "in", "lost", "lost"]
    assert second.there == {"in": b"one", "changes": b"other", "lost": b"one", "out": b"made"}


def test_an_instance_that_has_gone_is_not_asked_again(place: Place) -> None:
    """What it had is sent."""
    (place.campaign / "in").write_text("one")
    second = Session("two")
    reads = job(inputs=("in",))

    async def send() -> None:
        await place.files.send([reads])
        assert await place.instance(second).send([reads]) == {}

    asyncio.run(send())
    assert second.uploads == [("in", False)]
    assert not place.siblings.has("one")


def test_a_file_that_becomes_a_program_is_sent_again(place: Place) -> None:
    """Though its content is the same."""
    (place.campaign / "tool").write_text("x")
    reads = job(inputs=("tool",))

    async def send() -> None:
        await place.files.send([reads])
        (place.campaign / "tool").chmod(0o755)
        await place.files.send([reads])

    asyncio.run(send())
    assert place.session.uploads == [("tool", False), ("tool", True)]


def test_a_missing_file_is_a_fault_of_its_job_alone(place: Place) -> None:
    (place.campaign / "in").write_text("one")
    good = job(inputs=("in",))
    bad = WireJob(task=2, attempt=1, processors=1, limit=0.0, folder="2", steps=(), inputs=("no",))
    faults = asyncio.run(place.files.send([good, bad]))
    assert list(faults) == [2]
    assert "no" in faults[2]
    assert place.session.uploads == [("in", False)]


def test_an_output_that_is_not_there(place: Place) -> None:
    with pytest.raises(StagingError, match='output "out" is not at the service'):
        place.fetch(job(outputs=("out",)))


def test_a_folder_comes_whole_and_nothing_else(place: Place, tmp_path: Path) -> None:
    """Names that lead elsewhere are no files of it."""
    place.session.there |= {
        "out/a": b"a",
        "out/b/c": b"c",
        "out/../../evil": b"evil",
        "out/../kept": b"evil",
        "outer": b"no",
    }
    (place.made / "kept").write_bytes(b"mine")
    place.fetch(job(outputs=("out",)))
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"files/out/a", "files/out/b/c", "files/kept"}
    assert (place.made / "kept").read_bytes() == b"mine"


def test_a_link_of_a_task_leads_nobody_out(place: Place, tmp_path: Path) -> None:
    (place.made / "away").symlink_to(tmp_path)
    place.session.there["away/x"] = b"x"
    with pytest.raises(StagingError, match="outside"):
        place.fetch(job(outputs=("away/x",)))


def test_copies_go_into_folders(place: Place) -> None:
    """As they do where the root is at hand."""
    (place.made / "out").mkdir()
    place.session.there[".bursar-made/1.1/out"] = b"x"
    place.fetch(job(Copy("d/x.txt", "out", source_at_root=False, target_at_root=True)))
    assert (place.made / "out" / "x.txt").read_bytes() == b"x"
