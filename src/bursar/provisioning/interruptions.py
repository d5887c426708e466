"""
The program that watches for a provider's notice that it takes a machine back, and drains the pilot.

It runs on the machine beside the pilot. When the notice comes, the pilot is told by SIGUSR1 to take
no more tasks, the site's hook runs, and shortly before the machine goes SIGTERM ends the tasks that
still run, which begin again elsewhere.

    python -m bursar.provisioning.interruptions PROVIDER PILOT GRACE [HOOK]
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

ADDRESS = "BURSAR_METADATA"
"""Environment variable with the address of the metadata service; unset: the provider's own."""

POLL = 5.0
"""Seconds between two looks; EC2, GCE and Azure recommend no more than that."""

MARGIN = 5.0
"""Seconds, before the machine goes, in which killed tasks are reported and the pilot leaves."""

_TIMEOUT = 2.0  # seconds of one request


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """
    One request to a metadata service.

    Parameters
    ----------
    path
        Path below the service's address.
    """

    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"


Ask = Callable[[MetadataRequest], str | None]
"""Makes a request, and returns the text of the answer; None: no answer, or another status."""


# What providers say. Each function returns the seconds since the epoch at which the machine goes,
# or None while no notice is there. An answer that cannot be read is none: it must not end tasks.


def parse_ec2(text: str, now: float) -> float | None:
    """Read EC2's ``spot/instance-action``, such as ``{"action": "terminate", "time": "..."}``."""
    found = _json(text)
    if not isinstance(found, dict) or found.get("action") not in ("terminate", "stop", "hibernate"):
        return None
    try:
        return datetime.fromisoformat(str(found.get("time")).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return now + 120.0  # EC2 gives two minutes


def parse_gce(text: str, now: float) -> float | None:
    """Read GCE's ``instance/preempted``: ``TRUE`` 30 s before the machine is stopped."""
    return now + 30.0 if text.strip() == "TRUE" else None


def parse_azure(text: str, now: float, machine: str = "") -> float | None:
    """
    Read Azure's scheduled events: ``Preempt`` comes at least 30 s before the machine goes.

    Parameters
    ----------
    machine
        Name of this machine, since the list has the events of its neighbours, too; empty: any.
    """
    found = _json(text)
    events = found.get("Events") if isinstance(found, dict) else None
    times = []
    for event in events if isinstance(events, list) else []:
        if not isinstance(event, dict) or event.get("EventType") != "Preempt":
            continue
        if machine and machine not in (event.get("Resources") or [machine]):
            continue
        try:
            times.append(parsedate_to_datetime(str(event.get("NotBefore"))).timestamp())
        except ValueError:  # an event that has begun has no time
            times.append(now + 30.0)
    return min(times, default=None)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


# What providers are asked.


def look_at_ec2(ask: Ask, now: float) -> float | None:
    """Ask EC2 by version 2 of its service, which needs a token first."""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = ask(MetadataRequest("/latest/api/token", ttl, "PUT"))
    if not token:
        return None
    header = {"X-aws-ec2-metadata-token": token.strip()}
    answer = ask(MetadataRequest("/latest/meta-data/spot/instance-action", header))
    return None if answer is None else parse_ec2(answer, now)


def look_at_gce(ask: Ask, now: float) -> float | None:
    """Ask GCE whether the machine is being preempted."""
    header = {"Metadata-Flavor": "Google"}
    answer = ask(MetadataRequest("/computeMetadata/v1/instance/preempted", header))
    return None if answer is None else parse_gce(answer, now)


def look_at_azure(ask: Ask, now: float) -> float | None:
    """Ask Azure for the scheduled events of this machine."""
    header = {"Metadata": "true"}
    path = "/metadata/scheduledevents?api-version=2020-07-01"
    answer = ask(MetadataRequest(path, header))
    if answer is None or parse_azure(answer, now) is None:
        return None
    path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    return parse_azure(answer, now, (ask(MetadataRequest(path, header)) or "").strip())


LOOKS: Mapping[str, Callable[[Ask, float], float | None]] = {
    "ec2": look_at_ec2,
    "gce": look_at_gce,
    "azure_arm": look_at_azure,
}
"""How each provider is asked, by libcloud's name of the provider."""

_ADDRESSES = {
    "ec2": "http://169.254.169.254",
    "gce": "http://metadata.google.internal",
    "azure_arm": "http://169.254.169.254",
}


def ends_tasks_at(goes: float, now: float, grace: float) -> float:
    """
    Return when running tasks get SIGTERM, seconds since the epoch; before that they may end.

    Parameters
    ----------
    goes
        When the machine goes.
    grace
        Seconds that a task has after SIGTERM.
    """
    return max(now, goes - grace - MARGIN)


def _asker(address: str) -> Ask:
    # Never by a proxy: the address means another machine there.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(request: MetadataRequest) -> str | None:
        asked = urllib.request.Request(
            address + request.path, headers=dict(request.headers), method=request.method
        )
        try:
            with opener.open(asked, timeout=_TIMEOUT) as answer:
                return str(answer.read(65536).decode())
        except (OSError, ValueError):  # HTTP's errors are of the first kind
            return None

    return ask


def _send(pilot: int, number: int) -> bool:
    """Send a signal, or none with 0; return whether the pilot is there."""
    try:
        os.kill(pilot, number)
    except ProcessLookupError:
        return False
    return True


def drain(pilot: int, goes: float, grace: float, hook: str) -> None:
    """Have a pilot take no more tasks, run the hook, and end the pilot in time."""
    until = ends_tasks_at(goes, time.time(), grace)
    _send(pilot, signal.SIGUSR1)
    if hook:
        try:
            subprocess.run(["sh", "-c", hook], timeout=max(1.0, until - time.time()), check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"interruptions: the hook: {error}", file=sys.stderr, flush=True)
    while time.time() < until and _send(pilot, 0):
        time.sleep(min(0.5, max(0.0, until - time.time())))
    _send(pilot, signal.SIGTERM)


def main() -> int:
    """Watch until the pilot is gone; return the exit status."""
    provider, pilot, grace, *hook = sys.argv[1:]
    look = LOOKS[provider]
    ask = _asker(os.environ.get(ADDRESS) or _ADDRESSES[provider])
    while _send(int(pilot), 0):
        goes = look(ask, time.time())
        if goes is not None:
            print(f"interruptions: {provider} takes the machine back", file=sys.stderr, flush=True)
            drain(int(pilot), goes, float(grace), "\n".join(hook))
            return 0
        time.sleep(POLL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
