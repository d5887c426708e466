"""Decisions of a site that is a list of machines, without an ssh server."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bursar.provisioning.host_pilot import ProcessorClaim, processor_limit
from bursar.sites.ssh_hosts import advice
from bursar.sites.ssh_site import FIRST_PAUSE, LONGEST_PAUSE, choose_hosts, next_pause

FREE = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 20), max_size=8)


def test_the_narrowest_host_that_holds_all_is_chosen() -> None:
    """A pilot that fits one host gets one, and leaves the widest for wide tasks."""
    assert choose_hosts({"a": 8, "b": 4, "c": 5}, 4) == [("b", 4)]
    assert choose_hosts({"a": 8, "b": 4, "c": 5}, 11) == [("a", 8), ("b", 3)]
    assert choose_hosts({"a": 1, "b": 0}, 3) == [("a", 1)]


@given(FREE, st.integers(1, 100))
def test_no_processor_is_chosen_twice(free: dict[str, int], wanted: int) -> None:
    """Hosts are chosen once, with what they have, and as much as there is."""
    chosen = choose_hosts(free, wanted)

    assert len({host for host, _ in chosen}) == len(chosen)
    assert all(0 < count <= free[host] for host, count in chosen)
    assert sum(count for _, count in chosen) == min(wanted, sum(free.values()))


def test_pauses_grow_to_a_limit() -> None:
    """A host that goes on failing is asked less and less often."""
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause(pauses[-1]))

    assert pauses[1:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_known_complaints_get_advice() -> None:
    """What ssh says of keys leads to what to do; other words are left as they are."""
    said = "ann@node1: Permission denied (publickey)."
    assert "ssh-copy-id" in advice(said, host="ann@node1", python="python3")
    assert "`ssh n`" in advice("Host key verification failed.", host="n", python="python3")
    assert advice("something else", host="n", python="python3") == ""


def test_claims_are_the_kernels(tmp_path: Path) -> None:
    """Processors that one process has locked are not another's; the last removes the file."""
    path = str(tmp_path / "claims")
    program = (
        "import sys; from bursar.provisioning.host_pilot import ProcessorClaim\n"
        "claim = ProcessorClaim(sys.argv[1]); print(claim.take(3, 4), flush=True)\n"
        "sys.stdin.read(); claim.release()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    claim = ProcessorClaim(path)

    assert claim.count_free(4) == 1
    assert not claim.take(2, 4)
    assert claim.take(1, 4)
    other.communicate("")
    assert os.path.exists(path)  # ours is still locked
    claim.release()
    assert not os.path.exists(path)


def test_control_groups_limit_processors(tmp_path: Path) -> None:
    """The tightest group of all that hold the process counts; none means the affinity."""
    group = tmp_path / "cgroup"
    group.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")

    assert processor_limit(group, tmp_path) == 1
    assert processor_limit(tmp_path / "none", tmp_path) == len(os.sched_getaffinity(0))
