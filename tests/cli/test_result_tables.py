"""``bursar table``: parameters and results of a run's tasks, as its user asks for them."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

import bursar

SWEEP = """\
[campaign]
name = "fit"
[parameters]
n = [1, 2, 3]
case = ["a", "b"]
[tasks.fit]
command = '''
echo loss: {n}9
echo loss: {n}1
printf 'step,mean\\n1,0.5\\n2,0.{n}\\n' > {outputs}
test {n}{case} != 2b || exit 3
test {n}{case} = 1a || echo '{{"metrics": {{"ok": true, "size": {n}}}}}' '''
outputs = ["out/{n}-{case}.csv"]
[tasks.gather]
command = "cat {inputs} > {outputs}; wc -l < {outputs}"
inputs = [{ from = "fit" }]
outputs = ["all.txt"]
[retry]
attempts = 1
[results]
loss = { task = "fit", regex = "loss: ([0-9]+)" }
first = { task = "fit", regex = "loss: ([0-9]+)", match = "first", type = "text" }
mean = { from = "out/{n}-{case}.csv", csv = "mean" }
cell = { from = "out/*", csv = 1, row = 1 }
size = { task = "fit", json = "/metrics/size" }
"""
COLUMNS = ["task", "status", "n", "case", "loss", "first", "mean", "cell", "size"]


@pytest.fixture
def ran(folder: Any) -> Any:
    """A folder with a run of six tasks, of which one failed and one printed no JSON."""
    folder.write("c.toml", SWEEP)
    folder.bursar("run", "c.toml", "-q", status=1)
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_table_has_parameters_and_results(ran: Any) -> None:
    """A row for each task of which a column speaks; what failed has no results."""
    done = ran.bursar("table", "last")

    found = rows(done.stdout)
    assert list(found[0]) == COLUMNS
    assert [row["task"] for row in found] == [f"fit-{n}" for n in range(6)]
    assert list(found[0].values()) == ["fit-0", "succeeded", "1", "a", "11", "19", "0.1", "0.5", ""]
    assert list(found[3].values())[1:] == ["failed", "2", "b", "", "", "", "", ""]
    assert list(found[5].values())[4:] == ["31", "39", "0.3", "0.5", "3"]
    assert done.stderr == ("size: no value in 1 of 5 tasks, such as fit-0: stdout is not JSON\n")


def test_rows_are_chosen_by_results_parameters_and_times(ran: Any) -> None:
    """In the language of ``bursar tasks``; a column without any value is known all the same."""
    where = 'loss >= 21 && case == "a" && seconds < 1000 && status == "succeeded"'
    answer = ran.json("table", "last", "--where", where)

    assert answer["columns"] == COLUMNS
    assert [(row["n"], row["loss"], row["first"]) for row in answer["rows"]] == [
        (2, 21, "29"),
        (3, 31, "39"),
    ]
    assert answer["missing"][0]["column"] == "size"
    assert ran.bursar("table", "last", "--where", "n == 7").stdout == ",".join(COLUMNS) + "\n"
    told = ran.bursar("table", "last", "--where", "los > 1", status=2).stderr
    assert 'no column "los"' in told
    assert 'did you mean "loss"?' in told


def test_other_columns_are_taken_of_another_file(ran: Any) -> None:
    """Results may be thought of after the run; a required one that is missing is an error."""
    ran.write("more.toml", '[results]\nlines = { task = "gather", text = true }\n')
    assert ran.bursar("table", "last", "--results", "more.toml").stdout == (
        "task,status,lines\ngather,skipped,\n"
    )
    ran.write(
        "more.toml", '[results]\nx = { task = "fit", json = "/metrics/size", required = true }'
    )
    told = ran.bursar("table", "last", "--results", "more.toml", status=1).stderr
    assert told == 'bursar: fit-0 has no value for "x": stdout is not JSON\n'
    ran.write("more.toml", '[results]\nx = { task = "fid", text = true }\n')
    told = ran.bursar("table", "last", "--results", "more.toml", status=2).stderr
    assert told.startswith('bursar: more.toml:2: results.x.task: unknown task "fid"')
    ran.write("more.toml", "")
    told = ran.bursar("table", "last", "--results", "more.toml", status=2).stderr
    assert "has no [results]" in told


def test_a_run_without_results_has_its_parameters(folder: Any) -> None:
    """And says how to get more."""
    folder.write("c.toml", '[campaign]\ncommand = "echo {n}; : > x"\n[parameters]\nn = [1, 2]\n')
    folder.bursar("run", "c.toml", "-q")
    done = folder.bursar("table", "last")
    assert done.stdout == "task,status,n\nc-0,succeeded,1\nc-1,succeeded,2\n"
    assert "--results FILE" in done.stderr


def test_long_output_and_links_out_of_the_run(folder: Any) -> None:
    """Output that was too long for the journal is read; a link out of the run is not followed."""
    folder.write(
        "c.toml",
        "[campaign]\nname = 'c'\n[tasks.c]\n"
        "command = 'seq 200000; echo last 7; mkdir o; ln -s /etc/hostname o/x'\noutputs = ['o']\n"
        "[results]\nlast = { regex = 'last (.)' }\nn = { csv = 0, row = -2 }\n"
        "x = { from = 'o/x', text = true }\n",
    )
    folder.bursar("run", "c.toml", "-q")
    done = folder.bursar("table", "last")
    assert done.stdout == "task,status,last,n,x\nc,succeeded,7,200000,\n"
    assert "o/x leads out of the run's files" in done.stderr


def test_from_python(ran: Any) -> None:
    """The same table, row by row, by column, and as a data frame where pandas is there."""
    result = bursar.resume(ran.run, runs=ran.path / "runs")
    table = result.table("n > 1")

    assert len(table) == 4
    assert table.column("loss") == [21, None, 31, 31]
    assert next(iter(table)) == dict(
        zip(COLUMNS, ["fit-2", "succeeded", 2, "a", 21, "29", 0.2, 0.5, 2], strict=True)
    )
    with pytest.raises(KeyError):
        table.column("los")
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert list(frame["loss"].dropna()) == [21, 31, 31]
    assert str(frame["loss"].dtype) == "Int64"
    assert frame["mean"].dtype == "float64"
    assert frame.groupby("n")["mean"].max().to_dict() == {2: 0.2, 3: 0.3}
    assert isinstance(frame, pandas.DataFrame)


def test_arrow_and_parquet(ran: Any) -> None:
    """Files of other programs have the types of the columns."""
    pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    ran.bursar("table", "last", "--parquet", "t.parquet", "--arrow", "t.arrow")
    for table in (
        parquet.read_table(ran.path / "t.parquet"),
        feather.read_table(ran.path / "t.arrow"),
    ):
        assert table.column_names == COLUMNS
        assert [str(table.schema.field(n).type) for n in ("loss", "mean", "first")] == [
            "int64",
            "double",
            "string",
        ]
        assert table["loss"].to_pylist() == [11, 11, 21, None, 31, 31]
    told = ran.bursar("table", "last", "--parquet", "none/t.parquet", status=1).stderr
    assert "cannot be written" in told


def test_polars(ran: Any) -> None:
    """Missing values are null."""
    pytest.importorskip("polars")
    frame = bursar.resume(ran.run, runs=ran.path / "runs").table().to_polars()
    assert frame["loss"].to_list() == [11, 11, 21, None, 31, 31]


def test_a_missing_library_is_named(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    import sys

    for name, words in (("pyarrow", "'bursar[table]'"), ("pandas", "pandas"), ("polars", "polars")):
        monkeypatch.setitem(sys.modules, name, None)
        table = bursar.resume(ran.run, runs=ran.path / "runs").table()
        with pytest.raises(
            bursar.InputError, match=rf"needs {name}.*\n.*pip install {words}".replace("[", r"\[")
        ):
            getattr(table, f"to_{name.removeprefix('py')}")()


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("x = { }", "results.x", "expected one of text, json, csv, regex, xml"),
        ("x = { text = true, json = '/a' }", "results.x", "got text and json"),
        ("x = { text = false }", "results.x.text", "expected true"),
        ("x = { json = 'a' }", "results.x.json", 'expected a JSON Pointer such as "/a"'),
        ("x = { regex = '(' }", "results.x.regex", "is no regular expression"),
        ("x = { xml = 'a[' }", "results.x.xml", "is no path"),
        ("x = { json = '/a', row = 1 }", "results.x.row", "goes with csv"),
        ("n = { text = true }", "results.n", "is a parameter, too"),
        ("status = { text = true }", "results.status", "expected a name"),
        ("x = { from = 'o-{m}', text = true }", "results.x.from", 'unknown parameter "m"'),
        ("x = { from = 'o-{n}', text = true }", "results.x.from", 'no task makes "o-{n}"'),
        ("x = { from = '../o', text = true }", "results.x.from", "relative path"),
        ("x = { from = 'p*', text = true }", "results.x.from", "several outputs"),
        ("x = { csv = -1 }", "results.x.csv", ">= 0"),
        ("x = { txt = true }", "results.x.txt", "unknown key"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, line: str, place: str, message: str) -> None:
    """When the file is read, with the place and what was expected."""
    path = tmp_path / "c.toml"
    path.write_text(
        "[campaign]\nname = 'c'\n[parameters]\nn = [1]\n[tasks.c]\ncommand = 'echo {n}'\n"
        f"outputs = ['out-{{n}}', 'p1', 'p2']\n[results]\n{line}\n"
    )
    with pytest.raises(bursar.InputError) as caught:
        bursar.read_campaign(path)
    assert place in str(caught.value)
    assert message in str(caught.value)


PLAN = r"""
parameter n integer range from 1 to 2
output size
output half
output title
task main
    shexec "echo '{\"size\": $n, \"halves\": [0, 0.5]}' > out.json; echo 'name,n' > t.csv"
    shexec echo "t$n,$UNKNOWN" >> t.csv
    slurp json out.json size:/size half:/halves/$INDEX
    slurp csv t.csv title:0
endtask
""".replace("$INDEX", "1")


def test_outputs_of_a_nimrod_plan(folder: Any) -> None:
    """What jobs slurp is in the table; a name left to the shell is remarked on."""
    folder.write("p.pln", PLAN)
    done = folder.bursar("run", "p.pln", "-q")
    assert '"UNKNOWN" is no parameter and is left to the shell' in done.stderr
    assert folder.bursar("table", "last").stdout == (
        "task,status,n,size,half,title\njob1,succeeded,1,1,0.5,name\njob2,succeeded,2,2,0.5,name\n"
    )
