"""Tasks that gather what is there: ``needs`` in a campaign, told of what is absent."""

from typing import Any

import pytest
from tests.service.service_process import Served

CAMPAIGN = """\
[campaign]
name = "g"
[parameters]
n = [1, 2, 3, 4]
[tasks.sim]
command = "test {n} -ne 3 -o -e %s/mended && echo {n} > {outputs}"
outputs = ["s-{n}.txt"]
[tasks.mean]
needs = "NEEDS"
command = 'xargs cat < "$BURSAR_INPUTS" > {outputs}; echo "absent: $BURSAR_ABSENT"'
inputs = [{ from = "sim" }]
outputs = ["mean.txt"]
[tasks.draw]
command = "cat {inputs}"
inputs = ["mean.txt"]
[tasks.strict]
command = "cat {inputs}"
inputs = [{ from = "sim" }]
[retry]
attempts = 1
"""


def stated(folder: Any, needs: str) -> None:
    folder.write("g.toml", CAMPAIGN.replace("%s", str(folder.path)).replace("NEEDS", needs))


def statuses(folder: Any) -> list[str]:
    """Return the states of mean, draw and strict."""
    return [row["status"] for row in folder.json("tasks", "last")["tasks"][4:]]


def test_a_task_gathers_what_is_there_and_again_when_more_is(folder: Any) -> None:
    """The absent input is named, and after a retry of its maker everything is gathered."""
    stated(folder, "any")
    summary = folder.json("run", "g.toml", "-q", status=1)
    assert (summary["succeeded"], summary["failed"], summary["skipped"]) == (5, 1, 1)
    assert statuses(folder) == ["succeeded", "succeeded", "skipped"]
    assert folder.bursar("logs", "last", "mean").stdout == "absent: s-3.txt\n"
    assert folder.bursar("logs", "last", "draw").stdout == "1\n2\n4\n"

    folder.write("mended", "")
    folder.bursar("retry", "last", "-q")
    assert statuses(folder) == ["succeeded"] * 3
    assert folder.bursar("logs", "last", "mean").stdout == "absent: \n"
    assert folder.bursar("logs", "last", "draw").stdout == "1\n2\n3\n4\n"


@pytest.mark.parametrize(("needs", "end"), [("75%", "succeeded"), ("95 %", "skipped")])
def test_a_share_decides(folder: Any, needs: str, end: str) -> None:
    """Three of four are 75 %."""
    stated(folder, needs)
    folder.bursar("run", "g.toml", "-q", "--provisioning", "dynamic", status=1)
    assert statuses(folder) == [end, end, "skipped"]


def test_where_needs_are_refused(folder: Any) -> None:
    """What is no share; and ways of running that would not heed it."""
    stated(folder, "some")
    told = folder.bursar("plan", "g.toml", status=2).stderr
    assert 'g.toml:9: tasks.mean.needs: expected a share such as "80%" or 0.8' in told
    stated(folder, "any")
    told = folder.bursar("simulate", "g.toml", "--choice", "best", status=2).stderr
    assert "tasks.mean.needs" in told
    assert "--provisioning planned or dynamic" in told


def test_a_share_decides_at_a_service_too(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign is submitted as it is, and its tasks are told the same as in a run."""
    served = Served(folder.path / "here")
    served.start()
    try:
        monkeypatch.setenv("BURSAR_SITE", f"http://127.0.0.1:{served.port}")
        monkeypatch.setenv("BURSAR_SERVICES", str(folder.path / "services.toml"))
        for needs, end in (("75%", "succeeded"), ("95 %", "skipped")):
            stated(folder, needs)
            done = folder.json("submit", "-f", "g.toml", "--wait", status=1)
            found = folder.json("results", done["instance"], status=1)["results"]
            ends = {row["label"]: row for row in found}
            assert [ends[name]["state"] for name in ("mean", "draw", "strict")] == [
                end,
                end,
                "skipped",
            ]
            if end == "succeeded":
                assert ends["mean"]["stdout"] == "absent: s-3.txt\n"
                assert ends["draw"]["stdout"] == "1\n2\n4\n"
    finally:
        served.end()
