"""Who is answered, what with, and what the page's actions do."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.dashboard.conftest import SWEEP, Served
from tests.thoroughness import examples

import bursar


def test_only_the_token_opens_the_data(served: Served) -> None:
    """Without it nothing but the page itself is to be had, whatever is asked."""
    for path in ("/api/runs", "/api/runs/first", "/api/runs/first/tasks", "/api/money"):
        for given_one in ("", "Bearer", "Bearer x", f"Basic {served.access.token}"):
            answer = httpx.get(served.address + path[1:], headers={"Authorization": given_one})
            assert answer.status_code == 401
            assert "first" not in answer.text
    assert httpx.get(served.address).status_code == 200


def test_a_code_opens_the_page_once(served: Served) -> None:
    """The token comes in the page's own text, never in an address."""
    code = served.access.new_code()
    first = httpx.post(served.address + "open", data={"code": code.upper()})
    assert served.access.token in first.text
    assert not first.history
    again = httpx.post(served.address + "open", data={"code": code})
    assert again.status_code == 403
    assert served.access.token not in again.text


def test_foreign_names_of_this_server_are_refused(served: Served) -> None:
    """A page that has given its name our address gets nothing."""
    answer = served.client.get("/api/runs", headers={"Host": "evil.example"})
    assert answer.status_code == 421


def test_every_answer_forbids_foreign_code(served: Served) -> None:
    """Also errors, events and files have the policy."""
    for path in ("/", "/api/runs", "/api/runs/none", "/nothing", "/page/index.html"):
        headers = served.client.get(path).headers
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    with served.client.stream("GET", "/api/runs/events") as events:
        assert "unsafe" not in events.headers["Content-Security-Policy"]


def test_runs_are_listed_and_shown(served: Served) -> None:
    """The list has the run's figures, the page what report.html has."""
    (row,) = [r for r in served.client.get("/api/runs").json()["runs"] if r["run"] == "first"]
    assert (row["tasks"], row["succeeded"], row["failed"], row["budget"]) == (20, 19, 1, 40.0)
    page = served.client.get("/api/runs/first").json()
    assert page["summary"]["failed"] == 1
    assert {bar[6] for bar in page["actual"]["local"]} == set(range(20))
    assert row["spent"] == pytest.approx(page["summary"]["cost"])
    assert row["took_s"] == pytest.approx(page["summary"]["makespan_s"], rel=0.3, abs=0.5)
    assert not page["live"]


@pytest.mark.ci
def test_a_run_that_goes_on_shows_what_it_has_spent(
    served: Served, campaign: Path, tmp_path: Path
) -> None:
    """Processors that are held cost from second to second, before anything of them is paid."""
    go = tmp_path / "go"
    text = SWEEP.replace('"echo', f'"while ! test -e {go}; do sleep 0.05; done; echo')
    body = {"text": text, "name": "spends.toml", "folder": str(campaign.parent)}
    run = served.client.post("/api/runs", json=body).json()["run"]

    def row() -> dict[str, Any]:
        rows = served.client.get("/api/runs").json()["runs"]
        return next(one for one in rows if one["run"] == run)

    end = time.monotonic() + 30
    while not row()["spent"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    before = row()
    time.sleep(0.1)
    after = row()
    assert before["live"]
    assert after["live"]
    assert 0 < before["spent"] < after["spent"] <= 40
    assert after["spent"] + after["held"] <= 40
    go.write_text("")
    while row()["live"] or row()["state"] == "running":
        assert time.monotonic() < end + 30
        time.sleep(0.05)
    summary = served.client.get(f"/api/runs/{run}").json()["summary"]
    assert (row()["spent"], row()["held"]) == (pytest.approx(summary["cost"]), 0)


def test_tasks_are_searched_sorted_and_paged(served: Served) -> None:
    """Each row has its parameters; conditions are those of bursar tasks."""
    ask = served.client.get("/api/runs/first/tasks", params={"state": "failed"}).json()
    assert (ask["total"], ask["matched"]) == (20, 1)
    names = ask["columns"]
    assert ask["rows"][0][names.index("parameters.i")] == 7
    params: dict[str, Any] = {"sort": "parameters.i", "descending": "true", "limit": 3}
    page = served.client.get("/api/runs/first/tasks", params=params | {"offset": 1}).json()
    assert [row[names.index("parameters.i")] for row in page["rows"]] == [19, 18, 17]
    some = served.client.get("/api/runs/first/tasks", params={"where": "i > 17"}).json()
    assert some["matched"] == 3


def test_a_task_tells_all_of_itself(served: Served) -> None:
    """Command, attempts, reasons and both streams."""
    task = served.client.get("/api/runs/first/tasks/6").json()
    assert task["parameters"] == {"i": 7}
    assert "echo out 7" in task["command"]
    assert task["attempts"][-1]["status"] == "failed"
    assert task["why"]
    out = served.client.get("/api/runs/first/tasks/6/stdout")
    assert out.text == "out 7\n"
    assert out.headers["X-Size"] == out.headers["X-Next"] == "6"
    assert served.client.get("/api/runs/first/tasks/6/stderr?offset=4").text == "7\n"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/none", 404),
        ("/api/runs/..", 404),
        ("/api/runs/%2e%2e%2f%2e%2e%2fetc", 404),
        ("/api/runs/first/tasks?limit=0", 422),
        ("/api/runs/first/tasks?limit=x", 400),
        ("/api/runs/first/tasks?nothing=1", 400),
        ("/api/runs/first/tasks?sort=nothing", 422),
        ("/api/runs/first/tasks?where=i%20>", 422),
        ("/api/runs/first/tasks/20", 422),
        ("/api/runs/first/tasks/6/stdout?attempt=9", 422),
        ("/api/runs/first/tasks/6/stdout?offset=-1", 422),
        ("/api/runs/first/events?version=x", 422),
        ("/api/compare?first=first&second=none", 422),
        ("/page/..%2f__init__.py", 404),
    ],
)
def test_bad_requests_get_one_line(served: Served, path: str, status: int) -> None:
    """The answer is a problem document and never a fault of the server."""
    answer = served.client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert "\n" not in answer.json()["title"].strip()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["/api/runs/first/amend", "/api/runs/first/labels", "/api/plan", "/api/runs"]),
    st.one_of(
        st.binary(max_size=30),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["deadline", "text", "add", "note", "name", "x"]),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=6,
        ).map(lambda value: json.dumps(value).encode()),
    ).filter(lambda body: not _is_understood(body)),
)
def test_no_body_makes_a_fault(served: Served, path: str, body: bytes) -> None:
    """Bodies that are not what is asked for are refused with 4xx."""
    answer = served.client.post(path, content=body)
    assert 400 <= answer.status_code < 500, answer.text


def _is_understood(body: bytes) -> bool:
    """Whether a body could be right for some path, which would then begin a process."""
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return False
    return isinstance(value, dict) and all(
        isinstance(one, str | list | None) for one in value.values()
    )


def test_events_go_on_from_the_document(served: Served, campaign: Path) -> None:
    """A run that begins now is seen to end, with every task once."""
    slow = campaign.with_name("slow.toml")
    slow.write_text(SWEEP.replace('"echo', '"sleep 0.3; echo').replace('"sweep"', '"slow"'))
    body = {"text": slow.read_text(), "name": "slow.toml", "folder": str(slow.parent)}
    begun = served.client.post("/api/runs", json=body, headers={"Idempotency-Key": "1"}).json()
    again = served.client.post("/api/runs", json=body, headers={"Idempotency-Key": "1"}).json()
    assert again == begun  # one run and not two
    run = begun["run"]
    page = served.client.get(f"/api/runs/{run}").json()
    ended = [bar[6] for bars in page["actual"].values() for bar in bars]
    snapshots = 0
    url = f"/api/runs/{run}/events?version={page['version']}"
    if page["live"]:
        with served.client.stream("GET", url) as events:
            for name, data in _events(events):
                if name == "ended":
                    ended += [bar[6] for bars in data["bars"].values() for bar in bars]
                snapshots += name == "snapshot"
                assert name != "reload"
                if name == "over":
                    break
        assert snapshots
    # The one that fails has three attempts.
    assert Counter(ended) == Counter(range(20)) + Counter({6: 2})
    whole = served.client.get(f"/api/runs/{run}").json()
    assert whole["summary"]["succeeded"] == 19
    assert [r["run"] for r in served.client.get("/api/runs").json()["runs"]].count(run) == 1


def test_results_are_columns_of_the_table(served: Served, tmp_path: Path) -> None:
    """Of tasks that have succeeded, to sort and filter by; a missing required one is left out."""
    file = tmp_path / "fit.toml"
    file.write_text(
        '[campaign]\nname = "fit"\ncommand = "test {x} -eq 3 || echo loss {x}5"\n'
        "[parameters]\nx = [1, 2, 3]\n[task]\nruntime = 0.1\n"
        "[results]\nloss = { regex = '^loss ([0-9]+)$', required = true }\n"
    )
    bursar.run(file, runs=served.runs, name="fit", history="none", fresh=True)
    get = served.client.get

    page = get("/api/runs/fit/tasks?sort=results.loss&descending=true").json()
    where = page["columns"].index("results.loss")
    assert [row[where] for row in page["rows"]] == [25, 15, None]
    found = get("/api/runs/fit/tasks", params={"where": "loss > 20"}).json()
    assert found["matched"] == 1
    assert get("/api/runs/fit/tasks/1").json()["results"] == {"loss": 25}


@pytest.mark.ci
def test_a_goal_out_of_reach_is_a_conflict_with_a_way_out(served: Served, tmp_path: Path) -> None:
    """The problem document has the counter-offers, of which one can be accepted."""
    file = tmp_path / "slow.toml"
    file.write_text('[campaign]\nname = "slow"\ncommand = "sleep 1"\n[task]\nruntime = 1\n')
    body = {"text": file.read_text(), "name": "slow.toml", "folder": str(tmp_path)}
    body["deadline"] = "0.5 s"
    refused = served.client.post("/api/runs", json=body)
    assert refused.status_code == 409
    assert refused.headers["Content-Type"] == "application/problem+json"
    problem = refused.json()
    kinds = [offer["kind"] for offer in problem["counter_offers"]]
    assert "time" in kinds
    assert problem["goal"]["deadline_s"] == 0.5
    assert problem["title"]

    key = {"Idempotency-Key": "accept"}
    begun = [
        served.client.post("/api/runs", json=body | {"accept": "time"}, headers=key).json()
        for _ in range(2)
    ]
    assert begun[0]["run"] == begun[1]["run"]
    assert begun[0]["deadline_s"] > 0.5
    wrong = served.client.post("/api/runs", json=body | {"accept": "luck"})
    assert wrong.status_code == 400


@pytest.mark.ci
def test_a_run_is_cancelled_for_good(served: Served, tmp_path: Path) -> None:
    """While it runs, once; afterwards it can be neither resumed nor cancelled otherwise."""
    file = tmp_path / "long.toml"
    file.write_text('[campaign]\nname = "long"\ncommand = "sleep 600"\n[task]\nruntime = 1\n')
    body = {"text": file.read_text(), "name": "long.toml", "folder": str(tmp_path)}
    run = f"/api/runs/{served.client.post('/api/runs', json=body).json()['run']}"
    for _ in range(2):
        said = served.client.post(run + "/cancel")
        assert said.json() == {"run": run[10:], "state": "cancelled"}
    document = served.client.get(run).json()
    assert document["summary"]["state"] == "cancelled"
    assert "cancelled for good" in [text for _, text in document["messages"]]
    refused = served.client.post(run + "/resume")
    assert refused.status_code == 422
    assert "cancelled for good" in refused.json()["detail"]


@pytest.mark.ci
def test_sites_and_money_tell_what_runs_have_bought(served: Served, tmp_path: Path) -> None:
    """Prices over time, requests and processors of runs that go on, agreements and invoices."""
    go = tmp_path / "go"
    (tmp_path / "s.toml").write_text(
        "[site.hall]\nkind = 'local'\nprocessors = 2\nunit_price = '3600 EUR/core-hour'\n"
    )
    text = f'[campaign]\nname = "buy"\ncommand = "while ! test -e {go}; do sleep 0.05; done"\n'
    body = {
        "text": text + "[task]\nruntime = 1\n",
        "name": "buy.toml",
        "folder": str(tmp_path),
        "sites": str(tmp_path / "s.toml"),
    }
    run = served.client.post("/api/runs", json=body).json()["run"]
    sites = served.client.get("/api/sites", params={"file": str(tmp_path / "s.toml")}).json()
    assert [site["name"] for site in sites["sites"]] == ["hall"]
    sources = {(row[1], row[2], row[4]) for row in sites["prices"]["hall"]}
    assert sources == {(1.0, "EUR", "lease"), (1.0, "EUR", "asked")}
    (pilot,) = [row for row in sites["pilots"] if row["run"] == run]
    assert (pilot["site"], pilot["state"], pilot["processors"]) == ("hall", "held", 1)
    assert 0 <= pilot["age_s"] < 60
    (use,) = [row for row in sites["use"] if row["run"] == run]
    assert (use["held"], use["busy"], use["idle"]) == (1, 1, 0)

    (tmp_path / "more.toml").write_text(
        "[site.annex]\nkind = 'local'\nprocessors = 2\nunit_price = '1800 EUR/core-hour'\n"
    )
    wanted = {"file": str(tmp_path / "more.toml")}
    added = served.client.post(f"/api/runs/{run}/sites", json=wanted)
    assert added.json() == {"run": run, "added": ["annex"], "refused": {}}
    wrong = served.client.post(f"/api/runs/{run}/sites", json=wanted | {"sites": ["attic"]})
    assert (wrong.status_code, "no site" in wrong.json()["detail"]) == (422, True)
    assert served.client.post("/api/runs/first/sites", json=wanted).status_code == 422

    go.write_text("")
    until = time.monotonic() + 60
    while not any(one["run"] == run for one in served.client.get("/api/money").json()["invoices"]):
        assert time.monotonic() < until, tmp_path
        time.sleep(0.1)
    money = served.client.get("/api/money").json()
    (agreement,) = [one for one in money["agreements"] if one["run"] == run]
    assert (agreement["site"], agreement["unit_price"], agreement["currency"]) == ("hall", 1, "EUR")
    (invoice,) = [one for one in money["invoices"] if one["run"] == run]
    assert invoice["total_micros"] == sum(site["amount_micros"] for site in invoice["sites"]) > 0
    sites = served.client.get("/api/sites").json()
    assert not [row for row in sites["pilots"] if row["run"] == run]


@pytest.mark.ci
def test_output_of_a_task_that_runs_is_followed(served: Served, tmp_path: Path) -> None:
    """Seen while it runs, as text even where a piece ends within a character, and whole."""
    go = tmp_path / "go"
    file = tmp_path / "talk.toml"
    wait = f"while ! test -e {go}; do sleep 0.02; done"
    command = f"printf 'gr\\\\303'; {wait}; printf '\\\\274n\\\\377\\\\n'; echo why >&2"
    file.write_text(
        f'[campaign]\nname = "talk"\n[tasks.talk]\ncommand = "{command}"\nruntime = 1\n'
    )
    body = {"text": file.read_text(), "name": "talk.toml", "folder": str(tmp_path)}
    task = f"/api/runs/{served.client.post('/api/runs', json=body).json()['run']}/tasks/0"
    texts, notes, end = {"stdout": "", "stderr": ""}, [], None
    first: list[str] = []

    with served.client.stream("GET", f"{task}/output/events") as events:
        assert events.headers["Content-Type"] == "text/event-stream"
        for name, data in _events(events):
            first = first or [name]
            if name == "output":
                texts[data["stream"]] += data["text"]
                go.write_text("")  # only now: the task was seen to run
            elif name == "note":
                notes.append(data["text"])
            elif name == "end":
                end = data
    assert first == ["begin"]
    assert end == {"attempt": 1, "status": "succeeded"}
    assert texts == {"stdout": "grün\N{REPLACEMENT CHARACTER}\n", "stderr": "why\n"}
    assert notes[-1] == "attempt 1 succeeded"

    with served.client.stream("GET", f"{task}/output/events?tail=2&attempt=1") as events:
        pieces = [data["text"] for name, data in _events(events) if name == "output"]
    assert pieces == ["\N{REPLACEMENT CHARACTER}\n", "y\n"]
    assert served.client.get(f"{task[:-1]}77/output/events").status_code == 422
    assert served.client.get(f"{task}/output/events?tail=-1").status_code == 422


def _events(stream: httpx.Response) -> Any:
    name = ""
    until = time.monotonic() + 60
    for line in stream.iter_lines():
        assert time.monotonic() < until
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def test_actions_are_those_of_the_commands(served: Served) -> None:
    """Labels, a retry, a plan: what the commands would have said."""
    run = "/api/runs/first"
    labels = served.client.post(run + "/labels", json={"add": ["good"], "note": "seen"}).json()
    assert labels == {"run": "first", "tags": ["good"], "note": "seen"}
    refused = served.client.post(run + "/stop")
    assert refused.status_code == 422
    assert "no process carries run first out" in refused.json()["detail"]
    refused = served.client.post(run + "/amend", json={"deadline": "soon"})
    assert (refused.status_code, "soon" in refused.json()["detail"]) == (422, True)
    plan = served.client.post("/api/plan", json={"text": SWEEP}).json()
    assert plan["summary"]["state"] == "planned"
    assert len(plan["planned"]["local"]) == 20
    retried = served.client.post(run + "/retry", json={"tasks": ["sweep-6"]})
    assert retried.status_code == 200, retried.text
    assert retried.json()["run"] == "first"
    page = served.client.get(run).json()
    assert page["version"] > 0
