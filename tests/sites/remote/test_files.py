"""Files between a run and an instance, by a service that may mean no good."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bursar.dispatch.staging import Root, StagingError
from bursar.dispatch.wire import Job
from bursar.model.outcome import Outcome, Status
from bursar.model.step import Copy
from bursar.remote.messages import FileInfo, Problem
from bursar.remote.problems import RemoteProblem
from bursar.sites.remote.files import InstanceFiles


class Session:
    """An instance's files, by name, and what was done with them."""

    def __init__(self, **files: bytes) -> None:
        self.there = dict(files)
        self.uploads: list[tuple[str, bool]] = []

    async def upload(self, name: str, source: Path, *, executable: bool = False) -> None:
        self.there[name] = source.read_bytes()
        self.uploads.append((name, executable))

    async def download(self, name: str, target: Path) -> int:
        if name not in self.there:
            problem = Problem(title="", status=404, type="/problems/not-found")
            raise RemoteProblem("there", problem)
        return target.write_bytes(self.there[name])

    async def files(self) -> list[FileInfo]:
        return [FileInfo(name=name, size=1) for name in self.there]


def job(*steps: Any, **more: Any) -> Job:
    return Job(task=1, attempt=1, processors=1, limit=0.0, folder="1-x", steps=steps, **more)


DONE = Outcome(task=1, attempt=1, status=Status.SUCCEEDED)


class Place:
    """The run's folders, and an instance's files."""

    def __init__(self, folder: Path) -> None:
        self.campaign, self.made = folder / "campaign", folder / "files"
        for part in (self.campaign, self.made):
            part.mkdir()
        self.session = Session()
        root = Root(str(self.campaign), str(self.made))
        self.files = InstanceFiles(self.session, root, folder)  # type: ignore[arg-type]

    def fetch(self, job: Job) -> None:
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


def test_a_missing_file_is_a_fault_of_its_job_alone(place: Place) -> None:
    (place.campaign / "in").write_text("one")
    good = job(inputs=("in",))
    bad = Job(task=2, attempt=1, processors=1, limit=0.0, folder="2", steps=(), inputs=("no",))
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
