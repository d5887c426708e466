"""DAX files: what reads, and what is refused with which words."""

import re
from pathlib import Path

import pytest

from bursar.formats.dax import read_dax
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.task import File

# Jobs of each file by count. HEFT_paper states jobCount="25" and has ten.
FILES = {
    "CyberShake_100.xml": 100,
    "CyberShake_1000.xml.xz": 1000,
    "CyberShake_30.xml": 30,
    "CyberShake_50.xml": 50,
    "Epigenomics_100.xml": 100,
    "Epigenomics_24.xml": 24,
    "Epigenomics_46.xml": 47,
    "Epigenomics_997.xml.xz": 997,
    "HEFT_paper.xml": 10,
    "Inspiral_100.xml": 100,
    "Inspiral_30.xml": 30,
    "Inspiral_50.xml": 50,
    "Montage_100.xml": 100,
    "Montage_1000.xml.xz": 1000,
    "Montage_25.xml": 25,
    "Montage_50.xml": 50,
    "Sipht_30.xml.xz": 29,
    "Sipht_60.xml.xz": 58,
    "floodplain.xml": 7,
}

VERSION_2 = """<?xml version="1.0"?>
<adag xmlns="http://pegasus.isi.edu/schema/DAX" version="2.1" name="test">
  <job id="A" name="make" runtime="12.5" cores="2">
    <uses file="raw" link="input" size="100"/>
    <uses file="half" link="output" size="40"/>
  </job>
  <job id="B" name="use" runtime="3">
    <uses file="half" link="input" size="30"/>
    <uses file="raw" link="input" size="120"/>
    <uses file="done" link="output"/>
  </job>
  <child ref="B"><parent ref="A"/></child>
</adag>
"""

VERSION_3 = """<?xml version="1.0"?>
<!DOCTYPE adag>
<adag xmlns="http://pegasus.isi.edu/schema/DAX" version="3.6" name="blackdiamond">
  <file name="f.a"><pfn url="file:///f.a" site="local"/></file>
  <executable name="preprocess" arch="x86_64"/>
  <job id="ID1" name="preprocess">
    <argument>-i <file name="f.a"/></argument>
    <profile namespace="pegasus" key="runtime">60</profile>
    <profile namespace="pegasus" key="cores">4</profile>
    <profile namespace="pegasus" key="memory">512</profile>
    <profile namespace="env" key="runtime">none of ours</profile>
    <uses name="f.a" link="input"><metadata key="size">7</metadata></uses>
    <uses name="f.b" link="output" transfer="false"/>
    <uses name="preprocess" executable="true"/>
  </job>
  <job id="ID2" name="analyze">
    <uses name="f.b" link="inout"/>
  </job>
  <job id="ID3" name="analyze">
    <uses name="f.b" link="input"/>
  </job>
  <child ref="ID2"><parent ref="ID1" edge-label="x"/></child>
  <child ref="ID3"><parent ref="ID2"/></child>
</adag>
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "flow.dax"
    path.write_text(text)
    return path


def test_version_2_states_everything_in_attributes(tmp_path: Path) -> None:
    """Runtime, processors, files with one size each, and the order."""
    campaign = read_dax(_write(tmp_path, VERSION_2))

    a, b = campaign.workflow.tasks
    assert campaign.name == "flow"  # "test" is the generator's word for no name
    assert campaign.recorded
    assert (a.id, a.name, a.runtime, a.processors) == ("A", "make", 12.5, 2)
    assert a.inputs == (File("raw", 120),)  # nobody makes it: the largest size stated
    assert a.outputs == (File("half", 40),)
    assert b.inputs == (File("half", 40), File("raw", 120))  # the maker knows its size
    assert b.outputs == (File("done", None),)
    assert campaign.workflow.parents == ((), (0,))


def test_the_documented_file_reads_and_replays(tmp_path: Path) -> None:
    """The reference page shows no file, and no call, that would be refused."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "workflows.md").read_text()
    (text,) = re.findall(r"^```xml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    path = tmp_path / "montage.xml"
    path.write_text(text)
    namespace: dict[str, object] = {}
    exec(code.replace('"montage.xml"', repr(str(path))), namespace)

    campaign = namespace["campaign"]
    assert isinstance(campaign, Campaign)
    assert [task.runtime for task in campaign.workflow.tasks] == pytest.approx([0.205, 0.11])
    assert [task.processors for task in campaign.workflow.tasks] == [2, 1]
    assert campaign.workflow.initial_files == (File("raw", 1),)


def test_version_3_states_them_in_profiles(tmp_path: Path) -> None:
    """Runtime, cores and memory (MiB) are profiles; a program is not data."""
    campaign = read_dax(_write(tmp_path, VERSION_3))

    one, two, three = campaign.workflow.tasks
    assert campaign.name == "blackdiamond"
    assert (one.runtime, one.processors, one.memory) == (60.0, 4, 512 * 1024**2)
    assert one.inputs == (File("f.a", 7),)
    assert two.runtime is None
    # A file that two jobs write has a version for each; readers get their parents'.
    assert [f.name for f in one.outputs] == ["f.b@ID1"]
    assert [f.name for f in two.inputs] == ["f.b@ID1"]
    assert [f.name for f in two.outputs] == ["f.b@ID2"]
    assert [f.name for f in three.inputs] == ["f.b@ID2"]
    assert campaign.workflow.parents == ((), (0,), (1,))


def test_a_file_updated_in_place_exists_before(tmp_path: Path) -> None:
    """The only writer of a file also reads it: the first version is an input of the run."""
    text = """<adag><job id="A" runtime="1"><uses name="log" link="inout" size="5"/></job></adag>"""
    campaign = read_dax(_write(tmp_path, text))

    assert campaign.workflow.initial_files == (File("log", 5),)
    assert campaign.workflow.tasks[0].outputs == (File("log@A", 5),)


BOMB = """<!DOCTYPE adag [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;&lol;">]>
<adag><job id="A" name="&lol2;"/></adag>"""
EXTERNAL = """<!DOCTYPE adag [<!ENTITY passwords SYSTEM "file:///etc/passwd">]>
<adag><job id="A" name="&passwords;"/></adag>"""

BAD = [
    ("", "is not XML: no element found"),
    ("<adag><job></adag>", "1:14: is not XML: mismatched tag"),
    ("<plan/>", "the root element is <plan>, expected <adag>"),
    (BOMB, 'defines the entity "lol"; entities are refused'),
    (EXTERNAL, 'defines the entity "passwords"; entities are refused'),
    ("<?xml version='1.0' encoding='nonsense'?><adag/>", "is not XML: unknown encoding"),
    ("<adag/>", "has no <job>"),
    ("<adag><job/></adag>", '<job>: the attribute "id" is missing'),
    ('<adag><job id="A"/><job id="A"/></adag>', 'duplicate job id "A"'),
    ('<adag><job id="A" runtime="-1"/></adag>', "job A: runtime must not be negative, got -1"),
    ('<adag><job id="A" runtime="soon"/></adag>', 'job A: runtime is "soon", expected a number'),
    ('<adag><job id="A" runtime="nan"/></adag>', "job A: runtime is out of range: nan"),
    ('<adag><job id="A" runtime="1e999"/></adag>', "job A: runtime is out of range: 1e999"),
    ('<adag><job id="A" cores="0"/></adag>', "job A: cores must be between 1 and"),
    (
        '<adag><job id="A"><uses file="f" link="output" size="-5"/></job></adag>',
        "job A: f: size must not be negative, got -5",
    ),
    (
        '<adag><job id="A"><uses file="f" link="sideways"/></job></adag>',
        'job A: f: link is "sideways", expected input, output or inout',
    ),
    ('<adag><job id="A"><uses link="input"/></job></adag>', 'job A: <uses> has neither "file"'),
    (
        '<adag><job id="A"><uses file="../f" link="input"/></job></adag>',
        'task A: file name "../f" cannot be used',
    ),
    (
        '<adag><job id="A"><uses file="/f" link="input"/><uses file="f" link="input"/></job>'
        "</adag>",
        'file names "/f" and "f" mean the same file',
    ),
    ('<adag><dax id="S" file="s.dax"/></adag>', "sub-workflows (<dax>) are not supported"),
    ('<adag><job id="A"/><child><parent ref="A"/></child></adag>', '<child>: the attribute "ref"'),
    ('<adag><job id="A"/><child ref="A"><parent/></child></adag>', '"ref" is missing'),
    ('<adag><job id="A"/><child ref="B"/></adag>', 'unknown job "B"'),
    (
        '<adag><job id="A"/><child ref="A"><parent ref="B"/></child></adag>',
        'task A: unknown parent "B"',
    ),
    (
        '<adag><job id="A"/><job id="B"/><child ref="A"><parent ref="B"/></child>'
        '<child ref="B"><parent ref="A"/></child></adag>',
        "in a cycle: ",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    """One line: the file, the element, and what is wrong with it."""
    path = _write(tmp_path, text)

    with pytest.raises(InputError) as caught:
        read_dax(path)
    line = str(caught.value).partition("\nhint: ")[0]
    assert line.startswith(f"{path}:")
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize("name", FILES)
def test_a_real_file_reads_with_its_jobs(data: Path, name: str) -> None:
    """Every job, with a runtime, in the declared order and no other."""
    campaign = read_dax(data / "workflows" / "dax" / name)

    assert len(campaign.workflow.tasks) == FILES[name]
    assert all(task.runtime is not None for task in campaign.workflow.tasks)
    for task, parents in zip(campaign.workflow.tasks, campaign.workflow.parents, strict=True):
        assert len(parents) == len(task.after)


def test_every_real_file_is_in_the_table(data: Path) -> None:
    """A file added to the data must not go untested."""
    assert {p.name for p in (data / "workflows" / "dax").iterdir()} == set(FILES)


def test_the_facts_of_one_real_file(data: Path) -> None:
    """floodplain: 7 jobs, known runtimes, processors and sizes."""
    tasks = {t.id: t for t in read_dax(data / "workflows/dax/floodplain.xml").workflow.tasks}

    assert tasks["adcirc"].runtime == 39600.0
    assert tasks["adcirc"].processors == 256
    assert tasks["adcirc"].outputs == (File("adcirc_out.dat", 22572695552),)
    assert set(tasks["adcirc2"].after) == {"sin", "sis"}


def test_a_document_type_is_not_fetched(tmp_path: Path) -> None:
    """Naming a DTD is harmless as long as nobody goes and reads it."""
    text = """<!DOCTYPE adag SYSTEM "http://example.org/adag.dtd"><adag><job id="A"/></adag>"""

    assert len(read_dax(_write(tmp_path, text)).workflow.tasks) == 1


def test_negative_draws_of_the_generator_count_as_nothing(data: Path, tmp_path: Path) -> None:
    """
    The generator drew some negative sizes, and runtimes that follow from them.

    Epigenomics_997 holds 57 jobs of negative runtime and 4 of none. The same text without
    the generator's comment is refused, and so is a negative size that the
    file's other users do not agree with.
    """
    path = data / "workflows" / "dax" / "Epigenomics_997.xml.xz"
    tasks = {task.id: task for task in read_dax(path).workflow.tasks}
    assert tasks["ID00028"].runtime == 0.0
    assert tasks["ID00028"].inputs == (File("chr21.0.21.sfq", 0),)
    assert sum(task.runtime == 0.0 for task in tasks.values()) == 57 + 4

    text = (data / "workflows" / "dax" / "Montage_25.xml").read_text()
    for size in ("4167312", "304", "4222080"):  # made and read; only read, often; only read, once
        with pytest.raises(InputError, match=r"size must not be negative, got -1"):
            read_dax(_write(tmp_path, text.replace(f'size="{size}"', 'size="-1"', 1)))
    with pytest.raises(InputError, match=r"job ID00000: runtime must not be negative"):
        read_dax(_write(tmp_path, text.replace('runtime="13.39"', 'runtime="-13.39"')))
