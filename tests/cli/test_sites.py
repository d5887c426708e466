"""Sites as their user sees them."""

from typing import Any

import pytest

SITES = """\
[site.here]
kind = "local"
processors = 3
memory = "1 MB"
[site.far]
kind = "advertised"
[[site.far.slot]]
start = 0
duration = "1h"
processors = 8
"""


def test_a_local_site_says_how_it_is_and_others_are_not_asked(folder: Any) -> None:
    folder.write("sites.toml", SITES)

    here, far = folder.json("sites", "--sites", "sites.toml")["sites"]
    shown = folder.bursar("sites", "--sites", "sites.toml").stdout

    assert (here["trust"], far["trust"]) == (None, None)
    asked = ("free_processors", "traversal_time_s", "free_memory")
    assert [here[key] for key in asked[:2]] == [3, 0.0]
    assert here["free_memory"] in (None, 10**6)  # at most what the site may take
    assert [far[key] for key in asked] == [None] * 3
    first, second = shown.splitlines()[1:]
    assert first.split()[:6] == ["here", "local", "3", "of", "3", "0"]
    assert second.split()[:6] == ["far", "advertised", "of", "8,", "unknown", "unknown"]


@pytest.mark.ci
def test_what_another_bursar_is_trusted_with_is_told(folder: Any) -> None:
    table = '[site.{0}]\nkind = "remote"\nurl = "http://127.0.0.1:1"\nprocessors = 1\n'
    text = table.format("one") + table.format("two") + 'trust = "pickle"\n'
    folder.write("sites.toml", text)
    sites = folder.json("sites", "--sites", "sites.toml")["sites"]
    assert [site["trust"] for site in sites] == ["data", "pickle"]
