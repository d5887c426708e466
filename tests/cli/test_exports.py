"""``bursar export``: a run's record as other tools read it, exact, and without secrets."""

import csv
import http.server
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.foreign import run_foreign

from bursar.formats.wfformat import read_wfformat

CAMPAIGN = """\
[campaign]
name = "steps"
[parameters]
n = [1, 2, 3]
[task]
environment = { KEY = "hunter2" }
processors = 2
[tasks.make]
command = "test {n} -ne 3 && cat in.txt > {outputs}; s=$?; echo printed-$KEY; exit $s"
inputs = ["in.txt"]
outputs = ["out={n}.txt"]
runtime = 0.2
[tasks.sum]
needs = "50%"
command = "cat out*.txt > {outputs}"
inputs = [{ from = "make" }]
outputs = ["all.txt"]
runtime = 0.1
processors = 1
[secrets]
file = "secrets.env"
[tasks.tell]
command = "test -n $TOKEN"
secret = ["TOKEN"]
after = ["sum"]
[retry]
attempts = 2
"""
SITES = """\
[[site]]
name = "here and there"
kind = "local"
processors = 2
unit_price = 0.01
"""
HIDDEN = ("hunter2", "swordfish", "printed-")
"""The value of a variable, that of a secret, and what a task printed."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with a run of five tasks: one failed twice, and three come after it."""
    from tests.cli.conftest import Folder

    folder = Folder(tmp_path_factory.mktemp("exports"))
    folder.write("steps.toml", CAMPAIGN)
    folder.write("sites.toml", SITES)
    folder.write("in.txt", "hello\n")
    folder.write("secrets.env", "TOKEN=swordfish\n").chmod(0o600)
    folder.bursar("run", "steps.toml", "--sites", "sites.toml", "--name", "r", "-q", status=1)
    yield folder
    folder.close()


def exported(run: Any, form: str, *words: str) -> str:
    text: str = run.bursar("export", "r", "--as", form, *words).stdout
    return text


def test_wfformat_is_read_back_with_the_same_tasks_times_and_processors(run: Any) -> None:
    run.bursar("export", "r", "--as", "wfformat", "-o", "wf.json")
    found = read_wfformat(run.path / "wf.json")
    rows = {row["task"]: row for row in run.json("tasks", "r")["tasks"]}

    assert found.name == "steps"
    assert [task.id for task in found.workflow.tasks] == list(rows)
    assert found.workflow.parents == ((), (), (), (0, 1, 2), (3,))
    for task in found.workflow.tasks:
        assert task.runtime == rows[task.id]["runtime_s"]
        assert task.processors == (2 if task.name in ("make", "tell") else 1)
    sizes = {file.name: file.size for task in found.workflow.tasks for file in task.outputs}
    assert sizes == {"out_1.txt": 6, "out_2.txt": 6, "out_3.txt": 0, "all.txt": 12}
    assert found.recording is not None
    assert found.recording.makespan == run.json("report", "r")["makespan_s"]
    assert "5 tasks" in run.bursar("plan", "wf.json").stdout


def test_wfformat_follows_its_schema(run: Any, data: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((data / "workflows/wfformat/wfcommons-schema.json").read_text())
    document = json.loads(exported(run, "wfformat"))

    jsonschema.Draft7Validator(schema).validate(document)
    assert document["bursar"]["filesOfUnknownSize"] == ["out_3.txt"]


def test_every_export_has_the_money_of_the_bill_to_the_micro_unit(run: Any) -> None:
    bill = run.json("bill", "r")
    total = bill["total_micros"]
    remainder = sum(lease["remainder_micros"] for lease in bill["leases"])
    document = json.loads(exported(run, "wfformat"))
    by_task = [one["bursar"] for one in document["workflow"]["execution"]["tasks"]]
    jobs = list(csv.DictReader(exported(run, "jobs-csv").splitlines()))
    (root, lease, *attempts) = spans(json.loads(exported(run, "otel")))

    assert total > 0
    assert document["bursar"]["costMicros"] == total
    assert sum(one["costMicros"] for one in by_task) + remainder == total
    assert sum(int(one["cost_micros"]) for one in jobs) + remainder == total
    assert root["bursar.cost_micros"] == lease["bursar.cost_micros"] == total
    assert sum(one["bursar.cost_micros"] for one in attempts) + remainder == total
    assert {one["currency"] for one in jobs} == {bill["currency"]}
    assert [one["attempts"] for one in by_task] == [1, 1, 2, 1, 1]
    assert by_task[2]["status"] == "failed"
    assert "exit" in by_task[2]["reason"]


def test_jobs_hold_processors_that_no_other_job_holds(run: Any) -> None:
    jobs = list(csv.DictReader(exported(run, "jobs-csv").splitlines()))

    assert [job["job_id"] for job in jobs] == ["make-0", "make-1", "make-2", "make-2/2", "sum",
                                               "tell"]  # fmt: skip
    assert [job["success"] for job in jobs] == ["1", "1", "0", "0", "1", "1"]
    assert {job["allocated_resources"] for job in jobs if job["task"] != "sum"} == {"0-1"}
    for job in jobs:
        start, took, end = (float(job[name]) for name in
                            ("starting_time", "execution_time", "finish_time"))  # fmt: skip
        assert start + took == pytest.approx(end)
        assert float(job["submission_time"]) + float(job["waiting_time"]) == pytest.approx(start)
    second, first = (
        next(j for j in jobs if j["job_id"] == name) for name in ("make-2/2", "make-2")
    )
    assert second["submission_time"] == first["finish_time"]


def test_parquet_has_a_row_for_each_attempt(run: Any) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    told = run.json("export", "r", "--as", "parquet", "-o", "r.parquet")
    table = parquet.read_table(run.path / "r.parquet")
    rows = table.to_pylist()

    assert (told["tasks"], told["attempts"], len(rows)) == (5, 6, 6)
    assert [row["attempt"] for row in rows] == [1, 1, 1, 2, 1, 1]
    assert [row["parameter.n"] for row in rows] == [1, 2, 3, 3, None, None]
    assert str(table.schema.field("start").type) == "timestamp[us, tz=UTC]"
    assert [row["status"] for row in rows[2:4]] == ["failed", "failed"]


def spans(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The spans of a request, each with its attributes beside its fields."""
    (resource,) = body["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    read = {"intValue": int, "doubleValue": float, "stringValue": str, "boolValue": bool}
    return [
        span
        | {
            one["key"]: read[kind](value)
            for one in span["attributes"]
            for kind, value in one["value"].items()
        }
        for span in scope["spans"]
    ]


def test_a_trace_links_each_attempt_to_what_it_waited_for(run: Any) -> None:
    found = spans(json.loads(exported(run, "otel")))
    by_name: dict[str, list[dict[str, Any]]] = {}
    for span in found:
        by_name.setdefault(span["name"], []).append(span)
    (root,), (total,) = by_name["run r"], by_name["sum"]
    made = [one for one in by_name["make"] if one["bursar.final"]]

    assert len({span["spanId"] for span in found}) == len(found) == 8
    assert {span["traceId"] for span in found} == {root["traceId"]}
    assert {span["parentSpanId"] for span in found if span is not root} == {root["spanId"]}
    assert {link["spanId"] for link in total["links"]} == {one["spanId"] for one in made}
    failed = [one for one in by_name["make"] if one["status"]["code"] == 2]
    assert [one["bursar.attempt"] for one in failed] == [1, 2]
    for span in found:
        assert root["startTimeUnixNano"] <= span["startTimeUnixNano"] <= span["endTimeUnixNano"]
        assert span["endTimeUnixNano"] <= root["endTimeUnixNano"]
    assert exported(run, "otel") == exported(run, "otel")


def test_a_trace_is_one_of_opentelemetrys_own(run: Any) -> None:
    trace = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    from google.protobuf import json_format

    body = json.loads(exported(run, "otel"))
    # In OTLP's JSON ids are hexadecimal; protobuf's own reader takes base64, as which they parse.
    found = json_format.ParseDict(body, trace.ExportTraceServiceRequest())

    assert len(found.resource_spans[0].scope_spans[0].spans) == 8


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps what it is sent, and answers as its server says."""

    def do_POST(self) -> None:
        """Answer a request."""
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.got.append((self.path, self.headers, json.loads(body)))
        status, answer = server.answer
        self.send_response(status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Any]:
    """A collector of traces on this machine."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.got, server.answer = [], (200, b"{}")
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_trace_is_sent_to_a_collector(run: Any, collector: Any) -> None:
    said = run.bursar(
        "export", "r", "--as", "otel", "--endpoint", collector.url,
        env=os.environ | {"OTEL_EXPORTER_OTLP_HEADERS": "x-token=a%20b"},
    )  # fmt: skip
    ((path, headers, body),) = collector.got

    assert "sent 8 spans" in said.stderr
    assert (path, headers["x-token"]) == ("/v1/traces", "a b")
    assert body == json.loads(exported(run, "otel"))


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (503, b"", "answers 503"),
        (302, b"", "answers 302"),
        (200, b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "full"}}', "3 spans"),
    ],
)
def test_a_collector_that_refuses_is_named_in_one_line(
    run: Any, collector: Any, status: int, answer: bytes, words: str
) -> None:
    collector.answer = (status, answer)
    told = run.bursar("export", "r", "--as", "otel", "--endpoint", collector.url, status=1).stderr

    assert words in told
    assert len(told.splitlines()) == 1
    assert len(collector.got) == 1


def test_a_crate_is_a_folder_or_a_file_and_every_reference_leads_somewhere(run: Any) -> None:
    words = ("--author", "Ann <https://orcid.org/0000-0001-2345-6789>")
    run.bursar("export", "r", "--as", "ro-crate", "-o", "crate", *words)
    run.bursar("export", "r", "--as", "ro-crate", "-o", "crate.zip", *words)
    crate = run.path / "crate"
    files = {str(p.relative_to(crate)): p.read_bytes() for p in crate.rglob("*") if p.is_file()}
    with zipfile.ZipFile(run.path / "crate.zip") as packed:
        assert {name: packed.read(name) for name in packed.namelist()} == files

    graph = json.loads(files["ro-crate-metadata.json"])["@graph"]
    known = {entity["@id"]: entity for entity in graph}
    assert len(known) == len(graph)
    outside = {one for one in references(graph) if one not in known}
    assert all(one.startswith("https://") for one in outside), outside
    kept = {one["@id"] for one in graph if "File" in one["@type"]}
    assert {one.replace("%3D", "=") for one in kept} == files.keys() - {"ro-crate-metadata.json"}
    assert files["files/out=1.txt"] == b"hello\n"
    assert known["#run"]["agent"] == {"@id": "https://orcid.org/0000-0001-2345-6789"}
    failed = known["#attempt/2/2"]
    assert failed["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert "result" not in failed
    assert "exists already" in run.bursar(
        "export", "r", "--as", "ro-crate", "-o", "crate", status=2
    ).stderr  # fmt: skip


def references(value: Any) -> Iterator[str]:
    """The ids that a document refers to."""
    if isinstance(value, dict):
        if value.keys() == {"@id"}:
            yield value["@id"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_a_crate_without_files_describes_them(run: Any) -> None:
    run.bursar("export", "r", "--as", "ro-crate", "-o", "bare", "--no-files")
    graph = json.loads((run.path / "bare/ro-crate-metadata.json").read_text())["@graph"]
    described = {one["@id"]: one for one in graph if one["@id"].startswith("#file/")}

    assert not (run.path / "bare/files").exists()
    assert described["#file/out%3D1.txt"]["contentSize"] == "6"
    assert "contentSize" not in described["#file/out%3D3.txt"]


def test_a_link_out_of_the_run_is_not_followed(run: Any) -> None:
    """A link in the run's folder to a file of the user's does not publish that file."""
    key = run.write("key", "private\n")
    output = run.path / "runs/r/files/all.txt"
    content = output.read_bytes()
    output.unlink()
    output.symlink_to(key)
    try:
        run.bursar("export", "r", "--as", "ro-crate", "-o", "linked")
    finally:
        output.unlink()
        output.write_bytes(content)

    held = [path for path in (run.path / "linked").rglob("*") if path.is_file()]
    assert held
    assert all(b"private" not in path.read_bytes() for path in held)


@pytest.mark.parametrize("form", ["wfformat", "jobs-csv", "otel", "parquet", "ro-crate"])
def test_no_export_tells_a_secret(run: Any, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    target = run.path / f"hidden.{form}"
    run.bursar("export", "r", "--as", form, "-o", target.name)
    written = [target] if target.is_file() else [p for p in target.rglob("*") if p.is_file()]

    assert written
    for path in written:
        found = path.read_bytes()
        # The command itself has the word as the user wrote it.
        found = found.replace(b"echo printed-$KEY", b"")
        assert not [word for word in HIDDEN if word.encode() in found], path


def test_commands_may_be_left_out(run: Any) -> None:
    for form in ("wfformat", "otel"):
        assert "cat in.txt" in exported(run, form)
        assert "cat in.txt" not in exported(run, form, "--no-commands")


def test_a_run_whose_results_are_all_reused_is_exported(run: Any, folder: Any) -> None:
    """Tasks have the times of the earlier run, and no attempt, span or cost of this one."""
    folder.write("c.toml", '[campaign]\nname = "c"\ncommand = "echo {n}"\n[parameters]\nn = [1, 2]')
    folder.bursar("run", "c.toml", "--name", "first", "-q")
    folder.bursar("run", "c.toml", "--name", "r", "-q")
    document = json.loads(exported(folder, "wfformat"))
    records = document["workflow"].get("execution", {"tasks": []})["tasks"]

    assert document["bursar"]["costMicros"] == 0
    assert [one["bursar"]["reusedFrom"] for one in records] == ["first c-0", "first c-1"]
    assert exported(folder, "jobs-csv").count("\n") == 1
    folder.bursar("export", "r", "--as", "ro-crate", "-o", "crate")
    graph = json.loads((folder.path / "crate/ro-crate-metadata.json").read_text())["@graph"]
    assert not [one for one in graph if "Action" in str(one["@type"])]


def test_a_simulated_run_is_exported_from_its_first_moment(run: Any, folder: Any) -> None:
    """Its clock begins at 0, which is a moment like others."""
    folder.write("c.toml", '[campaign]\nname = "c"\ncommand = "true"\n[task]\nruntime = 5\n')
    folder.bursar("simulate", "c.toml", "--name", "r", "-q")
    (job,) = csv.DictReader(exported(folder, "jobs-csv").splitlines())
    document = json.loads(exported(folder, "wfformat"))

    assert (float(job["starting_time"]), float(job["finish_time"])) == (0.0, 5.0)
    assert document["workflow"]["execution"]["executedAt"].startswith("1970-01-01T00:00:00")
    (lease,) = document["bursar"]["leases"]
    total = document["bursar"]["costMicros"]
    assert int(job["cost_micros"]) + lease["remainder_micros"] == total


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--as", "wfcommons"], "'wfcommons' is not one of 'wfformat', 'ro-crate', 'jobs-csv'"),
        ([], "Missing option '--as'"),
        (["--as", "parquet"], "needs a name to write to"),
        (["--as", "ro-crate"], "-o RUN.crate.zip"),
        (["--as", "wfformat", "--endpoint", "http://localhost"], "goes only with --as otel"),
        (["--as", "otel", "--endpoint", "localhost:4318"], "--endpoint: expected http://"),
        (["--as", "otel", "--endpoint", "http://h:99999"], "--endpoint: expected http://"),
        (["--as", "otel", "--endpoint", "http://ann:pw@h"], "expected no user name"),
        (["--as", "otel", "--endpoint", "http://h", "-o", "x"], "goes without --output"),
        (["--as", "jobs-csv", "--license", "MIT"], "goes only with --as ro-crate"),
        (["--as", "jobs-csv", "--no-files"], "goes only with --as ro-crate"),
        (["--as", "ro-crate", "-o", "x", "--license", "MIT"], "--license: expected a URL"),
        (["--as", "ro-crate", "-o", "x", "--author", "<x>"], "--author: expected NAME"),
        (["--as", "otel", "--json"], "--json: needs a name to write to"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Any, words: list[str], told: str) -> None:
    said = run.bursar("export", "r", *words, status=2).stderr

    assert told in said
    assert len(said.splitlines()) <= 2


def test_what_cannot_be_written_is_said_in_one_line(run: Any) -> None:
    for form in ("wfformat", "ro-crate", "jobs-csv"):
        said = run.bursar("export", "r", "--as", form, "-o", "no/such/x", status=1).stderr
        assert said.count("\n") == 1
        assert "no/such/x: cannot be written" in said
    said = run.bursar("export", "r", "--as", "otel", "--endpoint", "http://127.0.0.1:9", status=1)
    assert "127.0.0.1:9: cannot be reached" in said.stderr
    headers = os.environ | {"OTEL_EXPORTER_OTLP_HEADERS": "hunter2"}
    said = run.bursar(
        "export", "r", "--as", "otel", "--endpoint", "http://127.0.0.1:9", status=2, env=headers
    )
    assert "hunter2" not in said.stderr


# Other people's readers, where they are installed.

INSTANCE = """
import json, sys
from wfcommons import Instance
instance = Instance(sys.argv[1], schema_file=sys.argv[2])
from wfcommons.wfinstances.schema import SchemaValidator
validator = SchemaValidator(sys.argv[2])
validator.validate_instance(instance.instance)
tasks = instance.workflow.tasks
print(json.dumps({
    "edges": sorted(map(list, instance.workflow.edges)),
    "runtimes": {name: task.runtime for name, task in tasks.items()},
    "cores": [task.cores for task in tasks.values()],
    "machines": sorted(instance.machines),
    "problems": validator.errors + validator.warnings,
}))
"""


def test_wfcommons_reads_the_instance(run: Any, data: Path) -> None:
    run.bursar("export", "r", "--as", "wfformat", "-o", "instance.json")
    schema = data / "workflows/wfformat/wfcommons-schema.json"
    found = json.loads(
        run_foreign("wfcommons", INSTANCE, "instance.json", str(schema), folder=run.path)
    )
    rows = {row["task"]: row["runtime_s"] for row in run.json("tasks", "r")["tasks"]}

    assert found["edges"] == [*(["make-" + n, "sum"] for n in "012"), ["sum", "tell"]]
    assert found["runtimes"] == rows
    assert found["cores"] == [2, 2, 2, 1, 2]
    assert found["machines"] == ["here_and_there"]
    assert found["problems"] == []


JOBSET = """
import json, sys
from evalys.jobset import JobSet
jobs = JobSet.from_csv(sys.argv[1])
print(json.dumps([jobs.MaxProcs, len(jobs.df), float(jobs.utilisation.load.max())]))
"""


def test_evalys_opens_the_jobs(run: Any) -> None:
    run.bursar("export", "r", "--as", "jobs-csv", "-o", "jobs.csv")

    assert json.loads(run_foreign("evalys", JOBSET, "jobs.csv", folder=run.path)) == [2, 6, 2.0]


CRATE = """
import json, sys
from importlib.resources import files
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester
import rdflib.plugins.shared.jsonld.context as contexts

# The contexts lie on the network. That of the package rocrate has the terms of RO-Crate 1.1, but
# for the namespace of Bioschemas, which has moved since.
crate = json.loads((files("rocrate") / "data/ro-crate.jsonld").read_text())["@context"]
crate |= {name: "https://bioschemas.org/" + name
          for name in ("ComputationalWorkflow", "FormalParameter")}
crate |= {name: "https://bioschemas.org/properties/" + name for name in ("input", "output")}
run = {"resourceUsage": "https://w3id.org/ro/terms/workflow-run#resourceUsage"}

def context(url):
    return {"@context": run if "workflow-run" in str(url) else crate}

class Answer:
    status_code, ok, reason, links, history = 200, True, "OK", {}, []
    headers = {"Content-Type": "application/ld+json"}

    def __init__(self, url):
        self.url, self.value = url, context(url)
        self.text = json.dumps(self.value)
        self.content = self.text.encode()

    def json(self):
        return self.value

    def raise_for_status(self):
        pass

HttpRequester.get = HttpRequester.head = lambda self, url, *a, **k: Answer(url)
contexts.source_to_json = lambda source, *a, **k: (context(source), None)
found = []
for profile in ("provenance-run-crate-0.5", "workflow-ro-crate-1.0"):
    settings = services.ValidationSettings(
        rocrate_uri=sys.argv[1],
        profile_identifier=profile,
        requirement_severity=models.Severity.REQUIRED,
    )
    issues = services.validate(settings).get_issues()
    found += [one.check.identifier + " " + str(one.message) for one in issues]
print(json.dumps(found))
"""


@pytest.mark.parametrize("extra", [[], ["--no-files"]])
@pytest.mark.parametrize("name", ["valid", "valid.zip"])
def test_the_validator_of_crates_finds_nothing(
    run: Any, name: str, extra: list[str], tmp_path: Path
) -> None:
    target = tmp_path / name
    run.bursar("export", "r", "--as", "ro-crate", "-o", str(target), *extra)

    found = run_foreign("rocrate, rocrate_validator", CRATE, str(target), folder=run.path)
    assert json.loads(found) == []
