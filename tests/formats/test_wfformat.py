"""WfFormat files: what reads, and what is refused with which words."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bursar.formats.wfformat import read_wfformat
from bursar.model.campaign import RecordedMachine
from bursar.model.errors import InputError
from bursar.model.task import File

# Tasks of each instance as the data's own index states them, and its makespan.
INSTANCES = {
    "1000genome-chameleon-12ch-250k-001.json.xz": (492, 6433.0, 4),
    "1000genome-chameleon-2ch-100k-001.json": (52, 776.0, 1),
    "bacass-dirt02-001.json": (11, 4243.0, 1),
    "blast-chameleon-small-001.json": (43, 1279.3, 2),
    "bwa-chameleon-small-001.json.xz": (104, 689.9, 4),
    "cycles-chameleon-1l-1c-9p-001.json.xz": (67, 454.0, 1),
    "epigenomics-chameleon-hep-1seq-100k-001.json": (41, 594.0, 1),
    "epigenomics-chameleon-hep-7seq-50k-001.json.xz": (1121, 2434.0, 5),
    "epigenomics-chameleon-ilmn-1seq-50k-001.json.xz": (241, 872.0, 2),
    "fetchngs-dirt02-001.json": (43, 246.0, 1),
    "helloworld-chain-5-chameleon.json": (5, 661.0, 1),
    "helloworld-forkjoin-10-chameleon.json": (10, 437.0, 1),
    "montage-chameleon-2mass-005d-001.json": (58, 1060.0, 1),
    "montage-chameleon-2mass-015d-001.json.xz": (310, 3185.0, 1),
    "montage-chameleon-dss-125d-001.json.xz": (1066, 1933.0, 4),
    "rnaseq-dirt02-001.json.xz": (197, 3131.0, 1),
    "sarek-dirt02-001.json": (26, 518.0, 1),
    "seismology-chameleon-100p-001.json.xz": (101, 354.0, 3),
    "seismology-chameleon-500p-001.json.xz": (501, 1004.0, 6),
    "soykb-chameleon-10fastq-10ch-001.json.xz": (96, 9323.0, 2),
    "soykb-chameleon-30fastq-10ch-001.json.xz": (256, 15545.0, 4),
    "srasearch-chameleon-20a-001.json": (42, 7576.0, 2),
    "srasearch-chameleon-50a-001.json.xz": (104, 7349.0, 2),
}

# Tasks whose recorded runtime is zero, by the data's own index.
ZERO_RUNTIMES = {
    "rnaseq-dirt02-001.json.xz": 56,
    "sarek-dirt02-001.json": 15,
    "fetchngs-dirt02-001.json": 9,
    "bacass-dirt02-001.json": 1,
}

INSTANCE: dict[str, Any] = {
    "name": "pair",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {
                    "name": "make",
                    "id": "a",
                    "parents": [],
                    "children": ["b"],
                    "inputFiles": ["raw"],
                    "outputFiles": ["/half/done"],
                },
                {
                    "name": "use",
                    "id": "b",
                    "parents": ["a"],
                    "children": [],
                    "inputFiles": ["/half/done"],
                    "outputFiles": ["done"],
                },
            ],
            "files": [
                {"id": "raw", "sizeInBytes": 10},
                {"id": "/half/done", "sizeInBytes": 20},
                {"id": "done", "sizeInBytes": 30},
            ],
        },
        "execution": {
            "makespanInSeconds": 3.5,
            "executedAt": "2026-01-01T00:00:00Z",
            "tasks": [
                {
                    "id": "a",
                    "runtimeInSeconds": 1.5,
                    "coreCount": 1.25,
                    "memoryInBytes": 4096.0,
                    "machines": ["node1"],
                },
                {"id": "b", "runtimeInSeconds": 2},
            ],
            "machines": [
                {
                    "nodeName": "node1",
                    "system": "linux",
                    "memoryInBytes": 8192,
                    "cpu": {"coreCount": 4, "speedInMHz": 2400},
                }
            ],
        },
    },
}


def _write(folder: Path, instance: object) -> Path:
    path = folder / "instance.json"
    path.write_text(json.dumps(instance))
    return path


def test_an_instance_becomes_tasks_files_and_machines(tmp_path: Path) -> None:
    """Every fact that planning and replay need is kept."""
    campaign = read_wfformat(_write(tmp_path, INSTANCE))

    a, b = campaign.workflow.tasks
    assert (a.id, a.name, a.runtime, a.memory) == ("a", "make", 1.5, 4096)
    assert a.processors == 2  # a utilisation of 1.25 processors needs two
    assert a.inputs == (File("raw", 10),)
    assert a.outputs == (File("half/done", 20),)  # absolute names come into our name space
    assert (b.runtime, b.processors, b.memory) == (2.0, 1, None)
    assert campaign.workflow.parents == ((), (0,))
    assert campaign.recorded
    assert campaign.recording is not None
    assert campaign.recording.makespan == 3.5
    assert campaign.recording.machine_of == {"a": ("node1",)}
    assert campaign.recording.machines == (
        RecordedMachine(name="node1", processors=4, megahertz=2400, memory=8192, system="linux"),
    )


def test_the_documented_instance_reads(tmp_path: Path) -> None:
    """The reference page shows no instance that would be refused."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "workflows.md"
    (text,) = re.findall(r"^```json\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    path = tmp_path / "two.json"
    path.write_text(text)

    campaign = read_wfformat(path)
    assert [task.runtime for task in campaign.workflow.tasks] == [20.5, 11.0]
    assert campaign.workflow.parents == ((), (0,))


def test_version_1_6_reads_with_its_summaries(tmp_path: Path) -> None:
    """Version 1.6 only adds optional summaries and a reference to its schema."""
    instance = copy.deepcopy(INSTANCE)
    instance["schemaVersion"] = "1.6"
    instance["workflow"]["specification"]["metrics"] = {"numTasks": 2}
    instance["workflow"]["execution"]["metrics"] = {"totalWork": 3.5}

    assert len(read_wfformat(_write(tmp_path, instance)).workflow.tasks) == 2


def test_a_specification_without_execution_has_no_runtimes(tmp_path: Path) -> None:
    """What is not known stays unknown; it does not become 0."""
    instance = copy.deepcopy(INSTANCE)
    del instance["workflow"]["execution"]

    campaign = read_wfformat(_write(tmp_path, instance))
    assert [task.runtime for task in campaign.workflow.tasks] == [None, None]


def _tasks(instance: dict[str, Any]) -> Any:
    return instance["workflow"]["specification"]["tasks"]


def _files(instance: dict[str, Any]) -> Any:
    return instance["workflow"]["specification"]["files"]


def _runs(instance: dict[str, Any]) -> Any:
    return instance["workflow"]["execution"]["tasks"]


def _cycle(instance: dict[str, Any]) -> None:
    _tasks(instance)[0]["parents"] = ["b"]
    _tasks(instance)[1]["children"] = ["a"]


BAD: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda i: i.pop("schemaVersion"), 'missing field "schemaVersion"'),
    (lambda i: i.update(schemaVersion="1.4"), 'version "1.4" is not supported, expected 1.5 or'),
    (lambda i: i.update(schemaVersion=1.5), "schemaVersion: expected text, got a number"),
    (lambda i: i.pop("workflow"), 'missing field "workflow"'),
    (lambda i: i["workflow"].pop("specification"), 'workflow: missing field "specification"'),
    (
        lambda i: i["workflow"]["specification"].pop("tasks"),
        'workflow.specification: missing field "tasks"',
    ),
    (lambda i: _tasks(i).clear(), "is empty, expected at least one task"),
    (
        lambda i: _tasks(i)[1].update(id=7),
        "workflow.specification.tasks[1].id: expected text, got a whole number",
    ),
    (
        lambda i: _runs(i)[0].update(runtimeInSeconds="long"),
        "workflow.execution.tasks[0].runtimeInSeconds: expected a number, got text",
    ),
    (lambda i: _tasks(i)[1].update(id="a"), 'duplicate task id "a"'),
    (lambda i: _tasks(i)[1].update(id=""), "id must not be empty"),
    (lambda i: _tasks(i)[1].update(parents=["z"]), 'task a: has "b" as child, which does not'),
    (lambda i: _tasks(i)[1]["parents"].append("z"), 'task b: unknown parent "z"'),
    (lambda i: _tasks(i)[0].update(children=[]), 'task b: has "a" as parent, which does not'),
    (lambda i: _tasks(i)[1]["children"].append("z"), 'task b: unknown child "z"'),
    (_cycle, "in a cycle: "),
    (lambda i: _files(i)[0].update(sizeInBytes=-1), "file raw: sizeInBytes must not be negative"),
    (
        lambda i: _files(i)[0].update(sizeInBytes=2.5),
        "files[0].sizeInBytes: expected a whole number",
    ),
    (lambda i: _files(i)[0].update(sizeInBytes=10**30), "sizeInBytes"),
    (lambda i: _files(i)[1].update(id="raw"), 'file raw: duplicate file id "raw"'),
    (lambda i: _files(i).pop(), 'task b: unknown file "done"'),
    (lambda i: _files(i)[0].update(id="../raw"), 'unknown file "raw"'),
    (lambda i: _runs(i)[0].update(runtimeInSeconds=-1), "runtimeInSeconds must not be negative"),
    (lambda i: _runs(i)[0].update(coreCount=0), "coreCount must be positive"),
    (lambda i: _runs(i)[0].update(coreCount=1e300), "coreCount must be positive and at most"),
    (lambda i: _runs(i)[0].update(memoryInBytes=-1), "memoryInBytes must not be negative"),
    (lambda i: _runs(i)[1].update(id="a"), 'duplicate task id "a"'),
    (lambda i: _runs(i)[1].update(id="z"), "has no task of this id in the specification"),
    (
        lambda i: i["workflow"]["execution"].update(makespanInSeconds=-1),
        "workflow.execution: makespan must be finite and not negative",
    ),
    (
        lambda i: i["workflow"]["execution"]["machines"][0]["cpu"].update(coreCount=0),
        "workflow.execution: processors must be positive, got 0",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_instance_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object], message: str
) -> None:
    """One line: the file, the field or task, and what is wrong with it."""
    instance = copy.deepcopy(INSTANCE)
    spoil(instance)
    path = _write(tmp_path, instance)

    with pytest.raises(InputError) as caught:
        read_wfformat(path)
    line = str(caught.value).partition("\nhint: ")[0]
    assert line.startswith(f"{path}: ")
    assert message in line
    assert "\n" not in line


def test_a_name_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    """A file of a recording must never be written outside the run's folder."""
    text = json.dumps(INSTANCE).replace('"raw"', '"x/../../raw"')
    path = tmp_path / "instance.json"
    path.write_text(text)

    with pytest.raises(InputError, match=r'file name "x/\.\./\.\./raw" cannot be used'):
        read_wfformat(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{\n  oops}", "2:3: is not JSON: "),
        ("[1]", "expected a table, got a list"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"schemaVersion": "\ud800"}', "is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """A syntax error names line and column."""
    path = tmp_path / "instance.json"
    path.write_bytes(text.encode(errors="surrogatepass"))

    with pytest.raises(InputError) as caught:
        read_wfformat(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", INSTANCES)
def test_a_real_instance_reads_with_its_facts(data: Path, name: str) -> None:
    """Task counts, makespans and machine counts are those of the data's index."""
    tasks, makespan, machines = INSTANCES[name]
    campaign = read_wfformat(data / "workflows" / "wfformat" / name)

    recording = campaign.recording
    assert recording is not None
    assert len(campaign.workflow.tasks) == tasks
    assert recording.makespan == makespan
    assert len(recording.machines) == machines
    assert {m for ms in recording.machine_of.values() for m in ms} <= {
        m.name for m in recording.machines
    }
    runtimes = [task.runtime for task in campaign.workflow.tasks]
    assert runtimes.count(0.0) == ZERO_RUNTIMES.get(name, 0)
    # The declared order already says all that the files say.
    for task, parents in zip(campaign.workflow.tasks, campaign.workflow.parents, strict=True):
        assert len(parents) == len(task.after)


def test_every_real_instance_is_in_the_table(data: Path) -> None:
    """An instance added to the data must not go untested."""
    folder = data / "workflows" / "wfformat"
    found = {p.name for p in folder.iterdir()} - {"wfcommons-schema.json"}

    assert found == set(INSTANCES)
    with pytest.raises(InputError, match="schemaVersion"):
        read_wfformat(folder / "wfcommons-schema.json")
