"""``bursar reproduce`` as its user calls it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_json import documented, keys_of


def test_the_list_names_every_figure(folder: Any) -> None:
    listed = folder.json("reproduce", "--list")
    assert {"hpdc07", "escience06"} <= {entry["paper"] for entry in listed}
    assert all(entry["title"] and entry["about"] for entry in listed)
    assert "figure" in folder.bursar("reproduce", "--list").stdout


@pytest.mark.ci
def test_a_figure_is_measured_written_and_kept(folder: Any) -> None:
    """
    Its JSON is documented, its table has a row for each measurement.
    """
    (document,) = folder.json("reproduce", "hpdc07", "--figure", "4", "--quick", "--jobs", "1")
    assert keys_of({k: v for k, v in document.items() if k != "rows"}) <= documented("json.md")
    (finding,) = document["findings"]
    assert (finding["paper"], finding["ours"], finding["verdict"]) == ("6", "6", "identity")
    for file in document["files"]:
        assert (folder.path / file).stat().st_size
    table = folder.path / "reproduced" / "hpdc07" / "figure-4.csv"
    assert len(table.read_text().splitlines()) == 1 + len(document["rows"])

    (again,) = folder.json("reproduce", "hpdc07", "--figure", "4", "--quick", "--out", "reproduced")
    assert (again["cached"], again["rows"]) == (1, document["rows"])


@pytest.mark.ci
def test_what_is_printed_says_how_much_was_done(folder: Any) -> None:
    done = folder.bursar("reproduce", "hpdc07", "--figure", "4", "--quick", interpreter=True)
    assert "few repetitions (--quick)" in done.stdout
    assert "free slots" in done.stdout


@pytest.mark.ci
def test_the_page_of_a_paper_is_written_anew(folder: Any) -> None:
    """
    What is between the markers of the figure, and the findings beside the page.
    """
    block = "<!-- findings: 4 -->\n<!-- end -->\n"
    (folder.path / "docs").mkdir()
    page = folder.write("docs/hpdc07.md", f"# Page\n\n{block}\nBy hand.\n")
    measure = ("reproduce", "hpdc07", "--figure", "4", "--quick", "--jobs", "1", "--docs", "docs")
    (document,) = folder.json(*measure)
    text = page.read_text()
    assert "1 true by construction" in text
    assert text.endswith("<!-- end -->\n\nBy hand.\n")
    for file in ("docs/hpdc07.json", "reproduced/hpdc07/findings.json"):
        recorded = json.loads((folder.path / file).read_text())
        assert recorded["figures"]["4"]["findings"] == document["findings"]
        assert keys_of(recorded) - {"4"} <= documented("json.md")

    page.write_text(text.replace("findings: 4", "findings: 5"))
    done = folder.bursar(*measure, status=2, interpreter=True)
    assert "has a block for 5" in done.stderr


@pytest.mark.ci
def test_bad_input_is_one_line(folder: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for argv, expected in (
        (("hpdc7",), 'unknown paper "hpdc7"'),
        (("hpdc07", "--figure", "8"), 'no figure "8" here'),
        (("hpdc07", "--quick", "--full"), "--quick"),
        (("hpdc07", "--figure", "4", "--jobs", "0"), "--jobs"),
        (("hpdc07", "--figure", "9", "--quick", "--data", "nowhere"), "is not there"),
    ):
        # What begins to measure starts processes.
        done = folder.bursar("reproduce", *argv, status=2, interpreter="--data" in argv)
        lines = [line for line in done.stderr.splitlines() if line.startswith("bursar:")]
        assert len(lines) == 1
        assert expected in lines[0]
        assert "Traceback" not in done.stderr
