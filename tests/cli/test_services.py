"""``bursar submit``, ``watch``, ``results``, ``instance`` and ``top``, against a real service."""

import csv
import json
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_json import documented, keys_of
from tests.service.service_process import Served

from bursar.cli.main import app
from bursar.model.errors import BursarError

TASKS = """\
{"command": ["echo", "hello"], "label": "good"}
{"shell": "echo oops >&2; exit 3", "label": "bad"}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a service on this machine."""
    served = Served(tmp_path_factory.mktemp("service") / "here")
    served.start()
    yield f"http://127.0.0.1:{served.port}"
    served.end()


@pytest.fixture
def here(folder: Any, site: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder in which the service is the one that is meant."""
    monkeypatch.setenv("BURSAR_SITE", site)
    monkeypatch.setenv("BURSAR_SERVICES", str(folder.path / "services.toml"))
    folder.write("tasks.ndjson", TASKS)
    return folder


def submitted(here: Any) -> str:
    """An instance whose tasks have ended."""
    instance: str = here.json("submit", "-f", "tasks.ndjson", "--label", "two")["instance"]
    here.bursar("watch", instance, status=1)
    return instance


def test_a_command_runs_there(here: Any) -> None:
    """What it printed is shown, its words are not looked at by a shell."""
    done = here.bursar("submit", "--wait", "--", "echo", "$HOME", "two words", "--wait")
    assert "$HOME two words --wait" in done.stdout
    assert "1 succeeded" in done.stdout
    assert re.search(r"instance [0-9a-z_-]{20,}", done.stderr)


def test_tasks_that_fail_make_status_1(here: Any) -> None:
    """Of whoever waits for them."""
    done = here.bursar("submit", "--wait", "-f", "tasks.ndjson", status=1)
    assert "1 succeeded" in done.stdout
    assert "1 failed" in done.stdout
    assert "good" in done.stdout


def test_the_id_alone_is_printed(here: Any) -> None:
    """For scripts: talk is on stderr."""
    done = here.bursar("submit", "--", "true")
    assert re.fullmatch(r"\S{20,}\n", done.stdout)
    assert done.stderr == "1 task submitted\n"


@pytest.mark.ci
def test_output_of_a_task_that_runs_is_followed(here: Any, site: str) -> None:
    """Part by part, bytes that are no text among them; in all what the result has."""
    go = here.path / "go"
    wait = f"while ! test -e {go}; do sleep 0.02; done"
    line = f"printf 'a\\377\\n'; {wait}; printf 'b\\n'; head -c 100000 /dev/zero; echo e >&2"
    here.write("tasks.ndjson", json.dumps({"shell": line}) + "\n")
    instance = here.bursar("submit", "-f", "tasks.ndjson").stdout.strip()
    out = here.path / "followed"
    words = [sys.executable, "-m", "bursar", "instance", "logs", instance, "0"]
    with out.open("wb") as target:
        following = subprocess.Popen([*words, "--follow"], stdout=target, stderr=subprocess.PIPE)
    while out.read_bytes() != b"a\377\n":
        assert following.poll() is None
    now = subprocess.run(words, capture_output=True, check=True)
    assert now.stdout == b"a\377\n"
    go.write_text("")
    _, err = following.communicate(timeout=60)
    assert following.returncode == 0
    whole = b"a\377\nb\n" + bytes(100000)
    assert out.read_bytes() == whole
    assert err.endswith(b"e\ntask 0: succeeded\n")

    ended = subprocess.run(words, capture_output=True, check=True)
    assert ended.stdout == whole
    assert "no task 1" in here.bursar("instance", "logs", instance, "1", status=2).stderr


@pytest.mark.ci
def test_results_have_every_key_in_the_reference(here: Any) -> None:
    """And the other documents, too."""
    instance = submitted(here)
    page = documented("json.md")
    results = here.json("results", instance, status=1)
    for document in (
        results,
        json.loads(here.bursar("submit", "--json", "--", "true").stdout),
        here.json("watch", instance, status=1),
        here.json("instance", "list"),
        here.json("instance", "files", instance),
        here.json("instance", "cancel", instance),
        here.json("top"),
    ):
        assert keys_of(document) <= page, keys_of(document) - page
    assert results["next"] == 2
    by_label = {result["label"]: result for result in results["results"]}
    assert by_label["good"]["stdout"] == "hello\n"
    assert (by_label["bad"]["exit_code"], by_label["bad"]["stderr"]) == (3, "oops\n")
    assert by_label["good"]["reason"] == ""


def test_results_go_on_after_a_cursor(here: Any) -> None:
    """A line each; nothing of what came before."""
    instance = submitted(here)
    lines = here.bursar("results", instance, "--ndjson", status=1).stdout.splitlines()
    rest = here.bursar("results", instance, "--ndjson", "--after", "1", status=None)
    assert [json.loads(line)["cursor"] for line in lines] == [1, 2]
    assert rest.stdout.splitlines() == lines[1:]


def test_files_go_and_come_back(here: Any) -> None:
    """What the task reads, what it makes, and all that it printed."""
    here.write("in.txt", "b\na\n")
    long = "head -c 3000000 /dev/zero; sort in.txt > out.txt"
    words = ("-i", "in.txt", "-o", "out.txt", "--json")
    done = here.bursar("submit", "--wait", *words, "--", "sh", "-c", long)
    instance = json.loads(done.stdout)["instance"]

    here.bursar("instance", "fetch", instance, "--into", "got")
    here.bursar("results", instance, "--output-dir", "printed")

    got = here.path / "got"
    assert (got / "out.txt").read_text() == "a\nb\n"
    assert {path.name for path in got.iterdir()} == {"in.txt", "out.txt"}
    assert (here.path / "printed" / "0.stdout").read_bytes() == bytes(3_000_000)
    listed = here.bursar("instance", "files", instance).stdout
    assert "out.txt" in listed


def test_a_campaign_is_taken_with_its_files_and_dependencies(here: Any) -> None:
    """In a new instance, where the positions of its tasks are their numbers."""
    here.write("in.txt", "5")
    here.write("c.toml", '[tasks.a]\ncommand = "cat in.txt"\ninputs = ["in.txt"]\n')
    assert "succeeded" in here.bursar("submit", "--wait", "-f", "c.toml").stdout
    here.write(
        "w.toml",
        '[tasks.b]\ncommand = "cat a.txt"\ninputs = ["a.txt"]\n'
        '[tasks.a]\ncommand = "echo made > a.txt"\noutputs = ["a.txt"]\n',
    )
    done = here.bursar("submit", "--wait", "-f", "w.toml")
    assert "2 succeeded" in done.stdout
    instance = re.findall(r"instance ([0-9a-z_-]{20,})", done.stderr)[0]
    refused = here.bursar("submit", "-f", "w.toml", "--instance", instance, status=2)
    assert "need a new instance" in refused.stderr


@pytest.mark.ci
def test_an_instance_is_exported_as_runs_are(here: Any) -> None:
    """
    All five formats. The campaign that was submitted tells order and processors, which a service
    does not keep; without it each task stands alone.
    """
    here.write(
        "order.toml",
        '[campaign]\nname = "order"\n'
        '[tasks.b]\ncommand = "sleep 0.1; cat a.txt; exit 3"\ninputs = ["a.txt"]\nprocessors = 2\n'
        '[tasks.a]\ncommand = "echo made > a.txt"\noutputs = ["a.txt"]\n'
        '[tasks.c]\ncommand = "true"\nafter = ["b"]\n',
    )
    instance = here.json("submit", "-f", "order.toml", "--label", "ordered")["instance"]
    here.bursar("watch", instance, status=1)

    def exported(form: str, *words: str) -> str:
        text: str = here.bursar("instance", "export", instance, "--as", form, *words).stdout
        return text

    document = json.loads(exported("wfformat", "-f", "order.toml"))
    assert document["name"] == "order"
    tasks = {one["id"]: one for one in document["workflow"]["specification"]["tasks"]}
    assert {name: one["parents"] for name, one in tasks.items()} == {
        "a": [],
        "b": ["a"],
        "c": ["b"],
    }
    ends = {one["id"]: one for one in document["workflow"]["execution"]["tasks"]}
    assert {name: one["coreCount"] for name, one in ends.items()} == {"a": 1, "b": 2}
    assert ends["b"]["bursar"]["exitCode"] == 3
    assert ends["b"]["runtimeInSeconds"] > 0.1
    here.write("order.json", json.dumps(document))
    assert "3 tasks" in here.bursar("plan", "order.json").stdout

    alone = json.loads(exported("wfformat"))["workflow"]["specification"]["tasks"]
    assert {one["id"]: one["parents"] for one in alone} == {"a": [], "b": [], "c": []}
    rows = list(csv.DictReader(exported("jobs-csv", "-f", "order.toml").splitlines()))
    assert [(row["task"], row["success"]) for row in rows] == [("a", "1"), ("b", "0")]
    assert float(rows[1]["submission_time"]) >= float(rows[0]["finish_time"])
    spans = json.loads(exported("otel"))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert len(spans) == 3
    exported("ro-crate", "-o", "order.zip", "--license", "https://example.org/cc0")
    with zipfile.ZipFile(here.path / "order.zip") as crate:
        graph = json.loads(crate.read("ro-crate-metadata.json"))["@graph"]
    assert sum(one["@type"] == "CreateAction" for one in graph) == 3  # the whole, and two tasks
    written = here.json("instance", "export", instance, "--as", "jobs-csv", "-o", "jobs.csv")
    assert (written["tasks"], written["attempts"]) == (3, 2)

    here.write("other.toml", '[tasks.x]\ncommand = "true"\n')
    said = here.bursar(
        "instance", "export", instance, "--as", "otel", "-f", "other.toml", status=2
    ).stderr
    assert "other.toml: is not the campaign of the instance's 3 tasks" in said


def test_an_interrupted_watch_leaves_the_tasks(here: Any) -> None:
    """And says so."""
    instance = here.bursar("submit", "--", "sleep", "60").stdout.strip()
    watch = here.start("watch", instance)
    first = watch.stderr.readline()
    assert "0 of 1 done" in first
    watch.signal_group(signal.SIGINT)
    _, said = watch.communicate()
    assert watch.returncode == 130
    assert said == "interrupted; the tasks go on\n"

    assert here.json("instance", "cancel", instance)["cancelled"] == 1
    states = [
        one["state"] for one in here.json("results", instance, "--follow", status=1)["results"]
    ]
    assert states == ["cancelled"]


def test_a_destroyed_instance_is_gone(here: Any) -> None:
    """As one that never was."""
    instance = here.bursar("submit", "--", "true").stdout.strip()
    here.bursar("instance", "destroy", instance)
    gone = here.bursar("results", instance, status=2).stderr
    never = here.bursar("results", instance[::-1], status=2).stderr
    assert gone == never
    assert "no such instance" in gone


def test_top_shows_instances_and_workers(here: Any) -> None:
    """Once, where there is no terminal."""
    submitted(here)
    shown = here.bursar("top").stdout
    for word in ("up for", "processors busy", "delivered", "two", "worker"):
        assert word in shown


def test_a_service_may_be_named(here: Any, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the user's own file; the only one needs no name."""
    monkeypatch.delenv("BURSAR_SITE")
    here.write("services.toml", f'[service.local]\nurl = "{site}"\n')
    assert "instances" in here.json("instance", "list", "--site", "local")
    assert "instances" in here.json("instance", "list")
    wrong = here.bursar("instance", "list", "--site", "locl", status=2)
    assert 'did you mean "local"?' in wrong.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit"], "give a COMMAND, or --file FILE"),
        (["submit", "-f", "tasks.ndjson", "--", "true"], "give a COMMAND, or --file FILE"),
        (["submit", "-f", "tasks.ndjson", "-p", "2"], "go with a COMMAND only"),
        (["submit", "--instance", "x", "--label", "y", "--", "true"], "a new instance only"),
        (["submit", "--limit", "soon", "--", "true"], "--limit: "),
        (["submit", "-i", "gone", "--", "true"], "gone: no such file"),
        (["submit", "-f", "gone.ndjson"], "gone.ndjson: cannot be read"),
        (["submit", "-f", "empty.ndjson"], "empty.ndjson: holds no tasks"),
        (["submit", "-f", "bad.ndjson"], "bad.ndjson:2: "),
        (["submit", "--site", "ftp://x", "--", "true"], "expected https://HOST:PORT"),
        (["submit", "--site", "http://example.org", "--", "true"], "this machine only"),
        (["results", ".."], "expected the name of something"),
        (["results", "x", "--json", "--ndjson"], "--ndjson: goes without --json"),
        (["instance", "cancel", "x", "1"], "no such instance"),
    ],
)
def test_bad_input_is_one_line(
    here: Any, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What, where, and what was expected."""
    here.write("empty.ndjson", "\n")
    here.write("bad.ndjson", '{"command": ["true"]}\n{"command": "true"}\n')
    monkeypatch.chdir(here.path)
    with pytest.raises(BursarError) as refused:
        app(words, standalone_mode=False)
    assert said in str(refused.value)
    assert refused.value.exit_status == 2


def test_nothing_is_made_at_the_service_by_what_is_refused(here: Any) -> None:
    """Files are looked at before an instance is asked for."""
    before = len(here.json("instance", "list")["instances"])
    refused = here.bursar("submit", "-i", "gone", "--", "true", status=2)
    assert refused.stderr == "bursar: gone: no such file\n"
    assert len(here.json("instance", "list")["instances"]) == before


def test_a_snippet_of_the_reference_runs(here: Any, site: str) -> None:
    """That of Python."""
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "services.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    code = code.replace("http://127.0.0.1:7480", site).replace("range(1000)", "range(3)")
    here.write("snippet.py", code)
    done = subprocess.run(
        [sys.executable, "snippet.py"], cwd=here.path, capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == ["0", "0", "1", "1", "2", "2"]


def test_processors_are_bought_used_and_paid(here: Any) -> None:
    """An agreement's id is all that is printed; the invoice names it; too dear is not bought."""
    page = documented("json.md")
    agreement = here.bursar("account", "buy", "-p", "1", "--for", "1h").stdout.strip()
    done = here.bursar("submit", "--wait", "--agreement", agreement, "--", "echo", "bought")
    listed = here.json("account", "agreements")
    ended = here.json("account", "cancel", agreement)

    assert "bought" in done.stdout
    assert [(deal["id"], deal["state"]) for deal in listed["agreements"]] == [
        (agreement, "running")
    ]
    assert ended["agreements"][0]["state"] in ("over", "cancelled")
    assert agreement in here.bursar("account", "agreements").stdout
    for document in (listed, ended, here.json("account", "show"), here.json("account", "invoice")):
        assert keys_of(document) <= page, keys_of(document) - page
    too_many = here.bursar("account", "buy", "-p", "1000", "--for", "1h", status=2)
    too_dear = here.bursar(
        "account", "buy", "-p", "1", "--for", "1h", "--most", "0.000001", status=2
    )
    assert "more than may be spent" in too_dear.stderr
    assert re.search(r"here: has \d+ processors", too_many.stderr)


def test_administrators_fill_accounts(here: Any) -> None:
    """Once for a key; not in another currency than the service's."""
    before = here.json("account", "show")
    for _ in range(2):
        here.bursar("account", "deposit", before["user"], "2.5", "--key", "first")
    assert here.json("account", "show")["balance"] - before["balance"] == 2_500_000
    here.bursar("account", "deposit", before["user"], "5 XYZ", status=2)
    here.bursar("account", "deposit", before["user"], "0", status=2)
