"""Templates of Open Job Description as campaigns: parameter spaces, format strings, refusals."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bursar
from bursar.formats.campaign_file import read_campaign
from bursar.formats.job_files.openjd_template import parse_int_range
from bursar.model.errors import InputError

TEMPLATE: dict[str, Any] = {
    "specificationVersion": "jobtemplate-2023-09",
    "name": "render {{Param.Scene}}",
    "parameterDefinitions": [
        {"name": "Scene", "type": "STRING", "default": 'a "b" $c'},
        {"name": "Frames", "type": "STRING", "default": "1-5:2"},
        {"name": "Out", "type": "PATH", "default": "out"},
    ],
    "jobEnvironments": [{"name": "E", "variables": {"QUALITY": "{{Param.Scene}}!"}}],
    "steps": [
        {
            "name": "gather",
            "dependencies": [{"dependsOn": "frames"}],
            "script": {
                "actions": {
                    "onRun": {
                        "command": "sh",
                        "args": ["-c", "cat {{Param.Out}}/* > {{Param.Out}}.all"],
                    }
                }
            },
        },
        {
            "name": "frames",
            "hostRequirements": {
                "amounts": [
                    {"name": "amount.worker.vcpu", "min": 1.5},
                    {"name": "amount.worker.memory", "min": 64},
                ],
                "attributes": [{"name": "attr.worker.os.family", "anyOf": ["linux"]}],
            },
            "parameterSpace": {
                "taskParameterDefinitions": [
                    {"name": "F", "type": "INT", "range": "{{Param.Frames}}"},
                    {"name": "Eye", "type": "STRING", "range": ["l", "r"]},
                ]
            },
            "script": {
                "embeddedFiles": [
                    {
                        "name": "Run",
                        "type": "TEXT",
                        "runnable": True,
                        "data": "#!/bin/sh\nmkdir -p \"$2\"\n"
                        "eye={{Task.Param.Eye}}; echo \"$1\" \"$QUALITY\" $eye > \"$2/$1$eye\"\n",
                    }
                ],
                "actions": {
                    "onRun": {
                        "command": "{{Task.File.Run}}",
                        "args": ["{{Task.Param.F}}", "{{Param.Out}}"],
                        "timeout": 60,
                    }
                },
            },
        },
    ],
}  # fmt: skip


def template(folder: Path, document: Any) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps(document))
    return path


def test_steps_and_their_tasks(tmp_path: Path) -> None:
    campaign = read_campaign(template(tmp_path, TEMPLATE))
    tasks = {task.id: task for task in campaign.workflow.tasks}
    assert campaign.name == 'render a "b" $c'
    assert list(tasks)[:3] == ["frames[F=1,Eye=l]", "frames[F=1,Eye=r]", "frames[F=3,Eye=l]"]
    first = tasks["frames[F=1,Eye=l]"]
    assert (first.processors, first.memory, first.wall_limit) == (2, 64 * 2**20, 60.0)
    assert len(tasks["gather"].after) == 6


def test_a_template_runs(tmp_path: Path) -> None:
    """Values with quotation marks and dollar signs arrive as they are."""
    sites = tmp_path / "sites.toml"
    sites.write_text('[site.here]\nkind = "local"\nprocessors = 2\nunit_price = 1\n')
    done = bursar.run(template(tmp_path, TEMPLATE), sites, runs=tmp_path / "runs")
    assert done.exit_status == 0
    lines = sorted((tmp_path / "out.all").read_text().splitlines())
    assert lines == [f'{f} a "b" $c! {eye}' for f in (1, 3, 5) for eye in "lr"]


def test_a_template_in_yaml_is_the_same(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="templates in YAML need PyYAML")
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(TEMPLATE))
    one, other = read_campaign(path), read_campaign(template(tmp_path, TEMPLATE))
    assert one.workflow.tasks == other.workflow.tasks
    path.write_text("specificationVersion: jobtemplate-2023-09\nname: [\n")
    with pytest.raises(InputError, match=r"job\.yaml: 3:1: is not YAML"):
        read_campaign(path)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1 - 5", [1, 2, 3, 4, 5]),
        ("1 - -1", [1]),
        ("-1 - 1", [-1, 0, 1]),
        ("1-5:2", [1, 3, 5]),
        ("10-15:2,1-5", [1, 2, 3, 4, 5, 10, 12, 14]),
        ("1-10:4", [1, 5, 9]),
        ("5-1:-2", [1, 3, 5]),
    ],
)
def test_ranges_are_those_of_the_specification(text: str, numbers: list[int]) -> None:
    """The table in section 3.4.1.1.1."""
    assert parse_int_range(text) == numbers


@pytest.mark.parametrize(
    ("combination", "points"),
    [
        ("", 12),
        ("A * C * B", 12),
        ("(A, B) * C", 4),
        ("(A,(B))*C", 4),
    ],
)
def test_parameters_are_combined(tmp_path: Path, combination: str, points: int) -> None:
    """Section 3.4.3; A and B have two and two values, C three, or two of each in parentheses."""
    document = copy.deepcopy(TEMPLATE)
    space = document["steps"][1]["parameterSpace"]
    space["taskParameterDefinitions"] = [
        {"name": "A", "type": "INT", "range": [1, 2]},
        {"name": "B", "type": "STRING", "range": ["x", "y"]},
        {"name": "C", "type": "FLOAT", "range": [0.5, 1.5, 2.5] if points == 12 else [0.5, 1.5]},
    ]
    space["combination"] = combination
    document["steps"][1]["script"] = {"actions": {"onRun": {"command": "true"}}}
    if not combination:
        del space["combination"]
    tasks = read_campaign(template(tmp_path, document)).workflow.tasks
    assert len([task for task in tasks if task.name == "frames"]) == points


def changed(*path: Any, value: Any) -> dict[str, Any]:
    """Return the template with another value at a place; the value ``...`` removes it."""
    document = copy.deepcopy(TEMPLATE)
    at: Any = document
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


RUN = ("steps", 1, "script", "actions", "onRun")
SPACE = ("steps", 1, "parameterSpace")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            changed("specificationVersion", value="jobtemplate-2099-01"),
            'expected "jobtemplate-2023',
        ),
        (changed("extensions", value=["EXPR"]), "extensions[0]: EXPR is not honoured"),
        (changed("nam", value="x"), "nam: "),
        (changed("steps", value=[]), "steps: "),
        (changed("steps", 0, "script", value=...), "script: is missing"),
        (changed("parameterDefinitions", 0, "default", value=...), '"Scene" has no default'),
        (changed("parameterDefinitions", 0, "allowedValues", value=["x"]), "none of the allowed"),
        (changed("steps", 0, "name", value="frames"), 'two steps have the name "frames"'),
        (
            changed("steps", 0, "dependencies", 0, "dependsOn", value="nothing"),
            'step gather: there is no step "nothing"',
        ),
        (changed("steps", 1, "dependencies", value=[{"dependsOn": "gather"}]), "in a cycle"),
        (changed(*RUN, "command", value="{{Param.No}}"), 'no value "Param.No" is known'),
        (changed(*RUN, "command", value="{{Param.Out"), "expected }} behind each {{"),
        (changed(*SPACE, "combination", value="F"), "expected each of F, Eye once"),
        (changed(*SPACE, "combination", value="(F, Eye)"), "differ in length"),
        (changed("parameterDefinitions", 1, "default", value="1-3,2"), "ranges overlap"),
        (changed("parameterDefinitions", 1, "default", value="x"), "expected numbers such as"),
        (changed("parameterDefinitions", 1, "default", value="1-99999999"), "has more than"),
        (
            changed("jobEnvironments", 0, "script", value={"actions": {}}),
            "scripts of environments are not honoured",
        ),
        (
            changed("steps", 1, "hostRequirements", "amounts", 0, "name", value="amount.licence"),
            "amount.licence: is not honoured",
        ),
        (
            changed("steps", 1, "hostRequirements", "attributes", 0, "anyOf", value=["windows"]),
            "attr.worker.os.family: is not honoured",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, document: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_campaign(template(tmp_path, document))
    assert said in str(caught.value)
    assert str(tmp_path / "job.json") in str(caught.value)


PLACES = [
    ("name",), ("steps", 0, "name"), (*RUN, "command"), (*RUN, "args"), (*RUN, "timeout"),
    (*SPACE, "taskParameterDefinitions", 0, "range"), (*SPACE, "combination"),
    ("parameterDefinitions", 0, "default"), ("steps", 1, "script", "embeddedFiles", 0, "data"),
    ("steps", 1, "script", "embeddedFiles", 0, "filename"), ("jobEnvironments", 0, "variables"),
    ("steps", 1, "hostRequirements", "amounts", 0, "min"), ("steps", 0, "dependencies"),
]  # fmt: skip


@given(
    st.sampled_from(PLACES),
    st.one_of(
        st.text(max_size=8),
        st.text("{}AB()*,- :109", max_size=12),
        st.integers(-3, 1 << 70),
        st.floats(),
        st.lists(st.text(max_size=3), max_size=3),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        st.none(),
    ),
)
def test_any_value_at_any_place_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: tuple[Any, ...], value: Any
) -> None:
    path = template(tmp_path_factory.getbasetemp(), changed(*place, value=value))
    try:
        said = str(read_campaign(path).source)
    except InputError as error:
        said = str(error)
    assert "job.json" in said
