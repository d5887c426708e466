"""Standard input, inherited variables and secrets of programs."""

from typing import Any

import pytest
from tests.worker.test_worker import one

from bursar.model.task import Exec, File, Inherit, Secret, Shell, StandardInput, Status


def test_a_program_reads_a_text_or_a_file_from_its_beginning(room: Any) -> None:
    (room.path / "campaign" / "in.txt").write_text("from a file\n")
    outcome = one(
        room,
        Exec(("cat",)),
        StandardInput(text="a text\n"),
        Exec(("cat",)),
        StandardInput(path="in.txt"),
        Shell("cat; cat"),
        inputs=(File("in.txt"),),
    )

    assert (outcome.status, outcome.reason) == (Status.SUCCEEDED, "")
    assert outcome.stdout == b"a text\nfrom a file\n"


def test_a_text_that_nobody_reads_holds_up_nothing(room: Any) -> None:
    assert one(room, StandardInput(text="x" * 10**6), Exec(("true",))).status is Status.SUCCEEDED


def test_only_listed_variables_are_inherited(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that say what the task is stay: by them its processes are found."""
    for name in ("NEEDED", "LC_OTHER", "UNWANTED"):
        monkeypatch.setenv(name, "1")
    outcome = one(
        room,
        Inherit(("PATH", "NEEDED", "LC_*")),
        Exec(("env",)),
        environment={"OWN": "2"},
    )

    names = {line.split("=")[0] for line in outcome.stdout.decode().splitlines()}
    assert {"PATH", "NEEDED", "LC_OTHER", "OWN", "BURSAR_RUN", "BURSAR_TASK"} <= names
    assert not names & {"UNWANTED", "HOME"}


def test_a_task_without_its_secret_does_not_run(room: Any) -> None:
    """Not every way to a worker carries secrets; an empty one would be worse than a failure."""
    outcome = one(room, Secret(("TOKEN",)), Exec(("echo", "ran")))

    assert outcome.status is Status.FAILED
    assert outcome.reason == 'secret: no value of the secret "TOKEN" has come here'
    assert outcome.stdout == b""
