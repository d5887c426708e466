"""A run folder keeps what a resumed run needs, and refuses what it cannot read."""

import json
from pathlib import Path

import pytest

from bursar.model.campaign import Campaign, Goal, Retry, Workflow
from bursar.model.errors import BursarError, InputError
from bursar.model.site import RemoteEndpoint, SiteFacts
from bursar.model.task import Call, Copy, Exec, File, OnError, Redirect, Shell, Substitute, Task
from bursar.runs import folder
from bursar.runs.folder import RunFolder

SITES = (SiteFacts(name="here", processors=2, unit_price=None),)


def campaign(root: Path) -> Campaign:
    every_step = (
        Exec(("echo", "a b")),
        Shell("echo $HOME"),
        Copy("a", "b", source_at_root=True, target_at_root=False),
        Redirect("stdout", "out", append=True),
        OnError(ignore=True),
        Substitute("t", "u", {"x": "1"}),
        Call(b"\x00\xff", as_data=True),
    )
    tasks = (
        Task(id="a", steps=every_step, outputs=(File("f", 3),), parameters={"x": 1, "y": 0.5}),
        Task(id="b", inputs=(File("f"),), after=("a",), processors=2, runtime=1.5, wall_limit=9.0),
    )
    goal = Goal(deadline=60, budget=2.5, currency="SU", on_budget={0.8: "warn", 1.0: "stop"})
    return Campaign(
        name="two tasks", workflow=Workflow(tasks), goal=goal, root=root, retry=Retry(attempts=2)
    )


def test_a_campaign_survives_the_round_trip(tmp_path: Path) -> None:
    """What a resumed run reads is what was planned, to the field."""
    before = campaign(tmp_path)

    assert folder.decode(folder.encode(before)) == before


def make(base: Path, name: str = "first") -> RunFolder:
    """A run of that name."""
    with RunFolder.create(base, campaign(base), SITES, argv=["bursar"], name=name) as run:
        return run


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    """The user may type what `bursar runs` shows, or a path."""
    run = make(tmp_path)

    assert RunFolder.open(tmp_path, "first").path == run.path.resolve()
    assert RunFolder.open(Path("elsewhere"), str(run.path)).path == run.path.resolve()
    assert run.read_info().sites == list(SITES)
    assert run.read_campaign() == campaign(tmp_path)
    assert [r.name for r in RunFolder.all(tmp_path)] == ["first"]


def test_what_a_site_is_trusted_with_survives_and_is_not_guessed(tmp_path: Path) -> None:
    """A run that an earlier version began trusts no site that it does not say it of."""
    remote = RemoteEndpoint(url="https://x", trust="pickle")
    sites = (SiteFacts(name="there", kind="remote", remote=remote),)
    with RunFolder.create(tmp_path, campaign(tmp_path), sites, argv=["bursar"], name="r") as run:
        pass
    assert run.read_info().sites == list(sites)
    document = json.loads(run.info_file.read_text())
    assert document["sites"][0]["remote"].pop("trust") == "pickle"
    run.info_file.write_text(json.dumps(document))
    (older,) = run.read_info().sites
    assert older.remote == RemoteEndpoint(url="https://x", trust="data")
    assert not older.sends_pickles


def test_an_unknown_run_gets_a_hint(tmp_path: Path) -> None:
    """A misspelt run is answered with the nearest one."""
    make(tmp_path)

    with pytest.raises(InputError, match='no run "frist"') as caught:
        RunFolder.open(tmp_path, "frist")
    assert caught.value.hint == 'did you mean "first"?'


def test_a_name_is_neither_taken_twice_nor_a_path(tmp_path: Path) -> None:
    """A run never overwrites another, nor leaves its folder."""
    make(tmp_path)

    with pytest.raises(InputError, match="exists already"):
        make(tmp_path)
    for name in ("../up", "..", "a/b", ""):
        with pytest.raises(InputError, match="is named by"):
            make(tmp_path, name)
    assert [run.name for run in RunFolder.all(tmp_path)] == ["first"]


def test_what_fails_before_it_is_a_run_leaves_nothing(tmp_path: Path) -> None:
    """A full disk while the plan is written: no folder that looks like a run."""

    def fail() -> None:
        with RunFolder.create(tmp_path, campaign(tmp_path), SITES, argv=[], name="first") as run:
            assert run.path.is_dir()
            raise BursarError("no room")

    with pytest.raises(BursarError, match="no room"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_damage_and_newer_formats_are_said_plainly(tmp_path: Path) -> None:
    """A file we cannot read is named; nothing is guessed."""
    run = make(tmp_path)
    text = run.info_file.read_text()

    run.info_file.write_text(text.replace('"format": 1', '"format": 99'))
    with pytest.raises(BursarError, match="format 99 is newer than 1"):
        run.read_info()
    run.info_file.write_text(text[:40])
    with pytest.raises(BursarError, match=r"run\.json: damaged"):
        run.read_info()
    run.compiled_file.write_bytes(b"\x00")
    with pytest.raises(BursarError, match="compiled campaign is damaged"):
        run.read_campaign()
