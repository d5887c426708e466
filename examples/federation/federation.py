"""
A campaign over three services and this machine; one service dies in the middle.

Two of the services have a small Slurm cluster each, the third this machine's processors. All
speak TLS with certificates of one authority, and sell by the second. Everything lies in a folder
and is ended before the program ends.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
BURSAR = [sys.executable, "-m", "bursar"]

PRICES = {"plain": 6, "slurm1": 10, "slurm2": 14}
"""EUR per processor-hour."""

SITES_FILE = """
[site.home]
kind = "local"
processors = 1
unit_price = "8 EUR/core-hour"
"""

SITE = """
[site.{name}]
kind = "remote"
url = "{url}"
processors = {processors}
currency = "EUR"
token_file = "{name}.token"
ca = "certs/ca.pem"
patience = "4 s"
"""

SERVICE = """
[service]
name = "{name}"
folder = "{name}"
listen = "127.0.0.1:0"
worker_listen = "127.0.0.1:{port}"
security = "tls"
certificate = "certs/server-{name}.pem"
key = "certs/server-{name}.pem"

[market]
must_buy = true

[site]
processors = {processors}
unit_price = "{price} EUR/core-hour"
{more}
"""


class Service:
    """A service of its own: a process, its workers, and a token to use it."""

    def __init__(self, folder: Path, name: str, processors: int, more: str = "") -> None:
        self.name, self.processors = name, processors
        self._folder = folder
        config = folder / f"{name}-service.toml"
        bursar(
            folder, "certs", "server", name, "--host", "127.0.0.1", "--folder", "certs",
            "--out", "certs",
        )  # fmt: skip
        config.write_text(
            SERVICE.format(
                name=name, port=free_port(), processors=processors, price=PRICES[name], more=more
            )
        )
        with (folder / f"{name}.log").open("w") as log:
            self._process = subprocess.Popen(
                [*BURSAR, "serve", "-c", str(config), "--json"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.url = self._told()["url"]
        admin = {"BURSAR_TOKEN_FILE": f"{name}/admin.token", "BURSAR_CA": "certs/ca.pem"}
        bursar(
            folder, "tokens", "create", "ann", "--site", self.url, "--out", f"{name}.token", **admin
        )

    def site(self) -> str:
        """Its table of a sites file."""
        return SITE.format(name=self.name, url=self.url, processors=self.processors)

    def kill(self) -> None:
        """It and its workers are gone at once, as if the machine had lost its power."""
        run = json.loads((self._folder / self.name / "journal" / "service.json").read_bytes())[
            "run"
        ]
        self._process.kill()
        self._process.wait()
        mark = f"BURSAR_RUN={run}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    def end(self) -> None:
        """By the rules; then whatever is left."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _told(self) -> dict[str, str]:
        assert self._process.stdout is not None
        said = ""
        while "\n}" not in said:
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit((self._folder / f"{self.name}.log").read_text())
            said += line
        told: dict[str, str] = json.loads(said)
        return told


@contextlib.contextmanager
def federation(folder: Path, processors: int) -> Iterator[dict[str, Service]]:
    """Three services that are ready, by name, and a sites file with them and this machine."""
    grid = folder / "grid"
    bursar(
        folder, "testgrid", "up", "--folder", str(grid), "--clusters", "2", "--nodes", "1",
        "--cpus", str(processors),
    )  # fmt: skip
    services: dict[str, Service] = {}
    try:
        bursar(folder, "certs", "init", "--folder", "certs")
        clusters = tomllib.loads((grid / "testgrid.toml").read_text())["site"]
        services["plain"] = Service(folder, "plain", processors)
        for name in ("slurm1", "slurm2"):
            services[name] = Service(folder, name, processors, as_toml(clusters[name]))
        sites = SITES_FILE + "".join(service.site() for service in services.values())
        (folder / "sites.toml").write_text(sites)
        yield services
    finally:
        for service in services.values():
            service.end()
        bursar(folder, "testgrid", "down", "--folder", str(grid))


def as_toml(cluster: dict[str, object]) -> str:
    """What a service file says of a cluster of the test grid."""
    conf = cluster["environment"]["SLURM_CONF"]  # type: ignore[index]
    return (
        f'kind = "slurm"\nqueue = "{cluster["queue"]}"\nreach = "127.0.0.1"\n'
        f'environment = {{ SLURM_CONF = "{conf}" }}\n'
    )


def killed_in_the_middle(service: Service, journal: Path, seconds: float) -> threading.Thread:
    """Kills a service so many seconds after a run has begun."""

    def kill() -> None:
        while not journal.exists():
            time.sleep(0.2)
        time.sleep(seconds)
        print(f"-- {service.name} and its workers are killed", flush=True)
        service.kill()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def bursar(folder: Path, *words: str, check: bool = True, **environment: str) -> int:
    """Runs a command there, and shows it."""
    print("$ bursar", *words, flush=True)
    done = subprocess.run(
        [*BURSAR, *words], cwd=folder, check=check, env={**os.environ, **environment}
    )
    return done.returncode


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def main() -> int:
    """The whole story."""
    parser = argparse.ArgumentParser(description="A campaign over three services.")
    parser.add_argument("--processors", type=int, default=3, help="of each service")
    parser.add_argument("--kill-after", type=float, default=12.0, help="seconds of the run")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bursar-federation-") as place:
        folder = Path(place)
        for file in ("campaign.toml", "draw.py", "mean.py"):
            (folder / file).write_bytes((HERE / file).read_bytes())
        with federation(folder, chosen.processors) as services:
            bursar(folder, "sites", "--sites", "sites.toml")
            bursar(folder, "plan", "campaign.toml", "--sites", "sites.toml")
            journal = folder / "runs" / "pi" / "journal.sqlite"
            killed_in_the_middle(services["plain"], journal, chosen.kill_after)
            status = bursar(
                folder, "run", "campaign.toml", "--sites", "sites.toml", "--name", "pi", check=False
            )
            bursar(folder, "table", "pi", check=False)
            bursar(folder, "bill", "pi", check=False)
            bursar(folder, "pilots", "pi", check=False)
            bursar(folder, "logs", "pi", "mean", check=False)
    return status


if __name__ == "__main__":
    sys.exit(main())
