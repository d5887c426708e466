"""Two projects at a real service get processors in proportion to their weights."""

from pathlib import Path

import pytest
from tests.cli.conftest import Folder
from tests.service.service_process import served

from bursar.remote.admin_messages import NewToken

TASKS = 240

WEIGHTS = """
[site]
processors = 2
[users.ann]
groups = ["physics"]
[users.bob]
groups = ["biology"]
[users.cat]
groups = ["biology"]
[groups.physics]
weight = 3
[groups.biology]
weight = 1
"""


@pytest.mark.ci
def test_projects_get_processors_by_their_weights(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While both have tasks, physics runs three for each one of biology, which has two users.

    Counted in the order in which tasks have begun, so that a busy machine changes nothing.
    """
    with served(folder.path / "state", WEIGHTS) as service:
        handles = {}
        monkeypatch.setenv("BURSAR_SITE", f"http://127.0.0.1:{service.port}")
        for user in ("bob", "cat", "ann"):
            with service.client() as owner:
                token = owner.create_token(NewToken(user=user, scopes=["submit", "read"])).token
            path = Path(folder.path / user)
            path.write_text(token)
            path.chmod(0o600)
            monkeypatch.setenv("BURSAR_TOKEN_FILE", str(path))
            (folder.path / "tasks").write_text('{"command": ["sleep", "0.02"]}\n' * TASKS)
            handles[user] = folder.json("submit", "--file", "tasks")["instance"]
        begun: list[tuple[float, str]] = []
        for user, handle in handles.items():
            monkeypatch.setenv("BURSAR_TOKEN_FILE", str(folder.path / user))
            found = folder.json("results", handle, "--follow")["results"]
            assert len(found) == TASKS
            begun += [(result["start"], user) for result in found]
    begun.sort()
    # From the first task of the last to come until that project is served.
    first = next(i for i, (_, user) in enumerate(begun) if user == "ann")
    last = max(i for i, (_, user) in enumerate(begun) if user == "ann")
    both = [user for _, user in begun[first : last + 1]]
    others = len(both) - both.count("ann")
    assert TASKS / 4 <= others <= TASKS / 2.4, others
    assert abs(both.count("bob") - both.count("cat")) <= others / 3


def test_a_group_of_nobody_is_one_line(folder: Folder) -> None:
    (folder.path / "service.toml").write_text("[groups.phyics]\nweight = 3\n")
    refused = folder.bursar("serve", "-c", "service.toml", status=2)
    assert "groups.phyics: no user is in this group" in refused.stderr
    (folder.path / "service.toml").write_text("[groups.physics]\nweight = 0\n")
    assert "groups.physics.weight" in folder.bursar("serve", "-c", "service.toml", status=2).stderr
