"""Standard input, environment and secrets of tasks, from the campaign file to the program."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

VALUE = "hush-5f1e9c-hush"

CAMPAIGN = """\
[campaign]
name = "s"
[task]
retries = 0
[tasks.knows]
command = '''
test "$TOKEN" = "$(cat {where})" || exit 3
echo "out $TOKEN"; echo "err $TOKEN" >&2; head -c 99000 /dev/zero; echo "long $TOKEN"
touch {started}; while test -e {hold}; do sleep 0.05; done'''
secret = ["TOKEN"]
[tasks.ignorant]
command = "env"
"""


def holders(value: bytes, folder: Path) -> list[str]:
    """Files of a folder, and command lines of this machine, that hold a value."""
    found = []
    for path in [*folder.rglob("*"), *Path("/proc").glob("[0-9]*/cmdline")]:
        try:
            if path.is_file() and value in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


@pytest.fixture
def secret(folder: Any, tmp_path: Path) -> Any:
    """A campaign whose task checks its secret, and waits while the file ``hold`` exists."""
    text = CAMPAIGN
    for name in ("where", "started", "hold"):
        text = text.replace(f"{{{name}}}", str(tmp_path / name))
    folder.write("c.toml", text)
    (tmp_path / "where").write_text(VALUE)
    folder.beside = tmp_path
    return folder


def test_a_secret_reaches_its_task_and_nothing_else(secret: Any) -> None:
    """No file of the run and no command line holds the value, while it runs and afterwards."""
    (secret.beside / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "bursar", "run", "c.toml"],
        cwd=secret.path,
        env={**os.environ, "TOKEN": VALUE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        while not (secret.beside / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
        assert holders(VALUE.encode(), secret.path / "runs") == []
        (secret.beside / "hold").unlink()
        told, _ = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert VALUE.encode() not in told
    run = secret.run
    assert holders(VALUE.encode(), run) == []
    known = secret.bursar("logs", run.name, "knows").stdout
    assert "out ***" in known
    assert known.count("***") >= 2
    assert "TOKEN=" not in secret.bursar("logs", run.name, "ignorant").stdout


def test_a_resumed_run_asks_for_its_secrets_again(secret: Any) -> None:
    (secret.beside / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "bursar", "run", "c.toml"],
        cwd=secret.path,
        env={**os.environ, "TOKEN": VALUE, "BURSAR_OUTLIVES": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        while not (secret.beside / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    (secret.beside / "hold").unlink()
    name = secret.run.name

    refused = secret.bursar("run", "--resume", name, status=2)
    assert '"TOKEN" has no value in the environment' in refused.stderr

    secret.bursar("run", "--resume", name, env={**os.environ, "TOKEN": VALUE})
    assert holders(VALUE.encode(), secret.run) == []


def test_a_file_of_secrets_is_read_if_it_is_closed_to_others(secret: Any) -> None:
    values = secret.path / "values.env"
    values.write_text(f"# mine\n\nTOKEN={VALUE}\n")
    text = (secret.path / "c.toml").read_text()
    secret.write("c.toml", text + '[secrets]\nfile = "values.env"\n')

    values.chmod(0o640)
    refused = secret.bursar("run", "c.toml", status=2)
    assert f'secrets.file: "{values}" may be read by others' in refused.stderr
    assert f"chmod 600 {values}" in refused.stderr
    values.chmod(0o600)
    secret.bursar("run", "c.toml")
    assert holders(VALUE.encode(), secret.run) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('stdin = "absent"', 'no task makes "absent"'),
        ('stdin = "/etc/passwd"', "tasks.t.stdin"),
        ('stdin = "a"\nstdin_text = "b"', "expected stdin or stdin_text, not both"),
        ('inherit = ["A=B"]', "tasks.t.inherit[0]: expected a name"),
        ('secret = ["X"]\nenvironment = {X = "1"}', '"X" stands in environment, too'),
        ('secret = ["ABSENT_HERE"]', '"ABSENT_HERE" has no value in the environment'),
    ],
)
def test_wrong_needs_get_one_line(folder: Any, setting: str, message: str) -> None:
    folder.write("c.toml", f'[tasks.t]\ncommand = "true"\n{setting}\n')
    refused = folder.bursar("run", "c.toml", status=2)

    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_remote_site_gets_no_secrets(folder: Any) -> None:
    """Its service would keep them in its journal."""
    folder.write("c.toml", '[tasks.t]\ncommand = "true"\nsecret = ["TOKEN"]\n')
    folder.write(
        "sites.toml",
        '[[site]]\nname = "far"\nkind = "remote"\nurl = "http://127.0.0.1:9"\n',
    )
    refused = folder.bursar(
        "run", "c.toml", "--sites", "sites.toml", env={**os.environ, "TOKEN": VALUE}, status=None
    )

    assert refused.returncode != 0
    assert VALUE not in refused.stderr + refused.stdout


def test_standard_input_is_a_file_or_a_text(folder: Any) -> None:
    """The file is an input, made by another task, and is not among {inputs}."""
    folder.write(
        "c.toml",
        """\
[campaign]
name = "io"
[tasks.make]
command = "echo made > {outputs}"
outputs = ["made.txt"]
[tasks.read]
command = "echo inputs={inputs}; cat"
stdin = "made.txt"
[tasks.text]
command = ["tr", "a-z", "A-Z"]
stdin_text = "hello {id}"
inherit = ["PATH"]
""",
    )
    folder.bursar("run", "c.toml")

    assert folder.bursar("logs", folder.run.name, "read").stdout == "inputs=\nmade\n"
    assert folder.bursar("logs", folder.run.name, "text").stdout == "HELLO TEXT"


# Countable resources.

SITES = """\
[site.plain]
kind = "local"
processors = 4
[site.rich]
kind = "local"
processors = 4
resources = { licence = 2, gpu = 2 }
"""

COUNTED = """\
[campaign]
name = "lic"
command = "echo $CUDA_VISIBLE_DEVICES; sleep 0.1"
[parameters]
n = { from = 1, to = 6, step = 1 }
[task]
over = ["n"]
runtime = "1s"
"""


def most_at_once(rows: list[dict[str, Any]]) -> int:
    """The most tasks that ran together."""
    moments = [(row["start"], 1) for row in rows] + [(row["end"], -1) for row in rows]
    count = most = 0
    for _, change in sorted(moments):
        count += change
        most = max(most, count)
    return most


def test_tasks_run_where_their_resources_are_and_no_more_of_them_at_once(folder: Any) -> None:
    folder.write("sites.toml", SITES)
    folder.write("c.toml", COUNTED + "resources = { licence = 1 }\ngpus = 1\n")

    planned = folder.bursar("plan", "c.toml", "--sites", "sites.toml")
    assert "plans do not count" not in planned.stdout  # all hold as many, and the plan is as wide
    folder.bursar("run", "c.toml", "--sites", "sites.toml")

    run = folder.run
    with (run / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["site"] for row in rows} == {"rich"}
    times = [{"start": float(row["start"]), "end": float(row["end"])} for row in rows]
    assert most_at_once(times) <= 2
    seen = {folder.bursar("logs", run.name, f"lic-{n}").stdout.strip() for n in range(6)}
    assert seen == {"0", "1"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gpus = 3", 'task "lic-0" needs 3 of "gpu", the site with most, "rich", has 2'),
        ("resources = { seat = 1 }", 'task "lic-0" needs 1 of "seat", no site has any'),
        ("gpus = 1\nresources = { gpu = 1 }", "task.gpus: stands in resources, too"),
        ("gpus = 0", "expected a whole number of at least 1"),
    ],
)
def test_what_no_site_can_serve_is_refused_at_once(folder: Any, setting: str, message: str) -> None:
    folder.write("sites.toml", SITES)
    folder.write("c.toml", COUNTED + setting + "\n")

    for command in ("plan", "run"):
        refused = folder.bursar(command, "c.toml", "--sites", "sites.toml", status=2)
        assert message in refused.stderr, refused.stderr
    assert not (folder.path / "runs").exists()


def test_a_strategy_is_refused_where_it_could_send_a_task_to_a_site_without(folder: Any) -> None:
    """Such a task would wait there for ever."""
    folder.write("sites.toml", SITES.replace("processors = 4", "processors = 4\nunit_price = 1"))
    folder.write("c.toml", COUNTED + "gpus = 1\n")

    refused = folder.bursar(
        "run", "c.toml", "--sites", "sites.toml", "--strategy", "cost", status=2
    )
    assert 'needs 1 of "gpu"; site "plain", where it could be sent, has 0' in refused.stderr
