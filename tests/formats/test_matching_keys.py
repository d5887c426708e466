"""What tasks of campaign files and jobs of plans ask of the broker."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from bursar.formats.campaign_file import campaign_schema, read_campaign
from bursar.model.errors import InputError
from bursar.model.matching import CHOICES, Matching
from bursar.model.task import Task

TASK = '[tasks.t]\ncommand = "x > {outputs}"\noutputs = ["o-{n}.txt"]\n'
SWEEP = "[parameters]\nn = [1, 2]\n"


def tasks(folder: Path, text: str, name: str = "c.toml") -> tuple[Task, ...]:
    path = folder / name
    path.write_text(text)
    return read_campaign(path).workflow.tasks


def refused(folder: Path, text: str, name: str = "c.toml") -> str:
    with pytest.raises(InputError) as caught:
        tasks(folder, text, name)
    assert "\n" not in caught.value.message
    return f"{caught.value.where}: {caught.value.message}".replace(f"{folder}/", "")


def test_a_task_carries_all_of_them(tmp_path: Path) -> None:
    """A parameter by itself keeps its kind; text with one in it is text."""
    found = tasks(
        tmp_path,
        SWEEP
        + TASK
        + 'requirements = "other.FreeCPUs >= need && member(\\"cms\\", other.Software)"\n'
        'rank = "-other.EstimatedTraversalTime"\nsite = "site-{n}"\nalpha = 0.75\nbeta = 1\n'
        'choice = "stochastic"\ndata = ["lfn/{n}.dat", "common.dat", "common.dat"]\n'
        'register = { "o-{n}.txt" = "results/{n}" }\n'
        'attributes = { need = "{n}", name = "run {n}", vo = "cms", share = 0.5, big = true }\n',
    )

    assert found[1].matching == Matching(
        requirements='other.FreeCPUs >= need && member("cms", other.Software)',
        rank="-other.EstimatedTraversalTime",
        site="site-2",
        alpha=0.75,
        beta=1.0,
        choice="stochastic",
        attributes={
            "need": "2", "name": '"run 2"', "vo": '"cms"', "share": "0.5", "big": "true",
        },
    )  # fmt: skip
    assert found[1].data == ("lfn/2.dat", "common.dat")
    assert found[1].registers == {"o-2.txt": "results/2"}


def test_tasks_that_ask_for_the_same_share_it(tmp_path: Path) -> None:
    """A million tasks hold one object; and one who asks for nothing asks for nothing."""
    found = tasks(tmp_path, SWEEP + TASK + 'requirements = "other.a"\nattributes = { b = 1 }\n')
    assert found[0].matching is found[1].matching
    plain = tasks(tmp_path, SWEEP + TASK)
    assert plain[0].matching == Matching()


def test_common_settings_ask_for_all_tasks(tmp_path: Path) -> None:
    text = '[task]\nrank = "other.Speed"\n[tasks.a]\ncommand = "x"\n[tasks.b]\ncommand = "y"\n'
    text += 'rank = "1"\n'

    assert [t.matching.rank for t in tasks(tmp_path, text)] == ["other.Speed", "1"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('requirements = "other.a = 1"',
         'c.toml:6: tasks.t.requirements: column 9: found "=", expected an operator or the end'),
        ('rank = """\nother.a +\n"""',
         "c.toml:6: tasks.t.rank: line 1, column 10: found the end, expected a value"),
        ("requirements = 1", "c.toml:6: tasks.t.requirements: expected text, got a whole number"),
        ('site = ""', "c.toml:6: tasks.t.site: expected the name of a site"),
        ('site = "{m}"', None),
        ("alpha = 2", None),
        ("beta = nan", None),
        ('choice = "bst"', None),
        ('data = ["../x"]', None),
        ('data = ["{m}"]', None),
        ('register = { "other.txt" = "x" }',
         'c.toml:6: tasks.t.register."other.txt": "other.txt" is no output of the task'),
        ('register = { "o-{n}.txt" = "/x" }', None),
        ("attributes = { a = [1] }", None),
        ('attributes = { a = "{m}" }', None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_at_its_key(
    line: str, expected: str | None, tmp_path: Path
) -> None:
    """File, line, field, and within an expression the column."""
    found = refused(tmp_path, SWEEP + TASK + line + "\n")

    assert found.startswith(f"c.toml:6: tasks.t.{line.split()[0]}")
    if expected is not None:
        assert found == expected


def test_the_schema_knows_the_keys() -> None:
    schema = Draft202012Validator(campaign_schema())
    task = {"command": "x", "rank": "1", "alpha": 0.5, "data": ["a"], "attributes": {"a": 1}}

    for choice in CHOICES:
        assert schema.is_valid({"tasks": {"t": task | {"choice": choice}}})
    assert not schema.is_valid({"tasks": {"t": task | {"choice": "bst"}}})
    assert not schema.is_valid({"tasks": {"t": task | {"alpha": 1.5}}})


PLAN = "parameter n integer range from 1 to 2\n{}\ntask main\n  exec x\nendtask\n"


def test_a_plan_may_state_requirements_and_rank(tmp_path: Path) -> None:
    """Our extension of the language: every job asks for them."""
    stated = 'requirements "other.OpSys == \\"LINUX\\"";\nrank "-other.EstimatedTraversalTime"'
    found = tasks(tmp_path, PLAN.format(stated), "p.pln")

    asked = Matching(requirements='other.OpSys == "LINUX"', rank="-other.EstimatedTraversalTime")
    assert [t.matching for t in found] == [asked, asked]
    assert tasks(tmp_path, PLAN.format(""), "p.pln")[0].matching == Matching()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('requirements "other.a = 1"',
         'p.pln:2:23: found "=", expected an operator or the end'),
        ('requirements "other.a == \\"x"',
         "p.pln:2:14: column 12 of the expression: the string is not closed by the end of the "
         "line"),
        ('rank "1"\nrank "2"', 'p.pln:3:1: "rank" is already stated in line 2'),
        ('rank "$n"', "p.pln:2:6: holds the parameter $n, expected none"),
        ("rank other.a", None),
    ],
)  # fmt: skip
def test_a_wrong_statement_of_a_plan_is_refused_at_its_column(
    line: str, expected: str | None, tmp_path: Path
) -> None:
    found = refused(tmp_path, PLAN.format(line), "p.pln")

    assert found.startswith("p.pln:")
    if expected is not None:
        assert found == expected
