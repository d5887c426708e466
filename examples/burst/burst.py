"""
A campaign that this machine and a small cluster cannot finish in time buys the rest of a cloud.

The cloud is EC2 as moto serves it on this machine: its machines are local processes that run their
user data. The cluster is under real Slurm, where Slurm is installed. Everything lies in a folder
and is ended before the program ends.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bursar_devtools.clouds.machine_room import IMAGE, MachineRoom, machine_room
from bursar_devtools.testgrid.slurm import SlurmCluster
from bursar_devtools.testgrid.slurm_requirements import missing_programs

CAMPAIGN = Path(__file__).parent / "campaign.toml"

HOME = """
[site.home]
kind = "local"
processors = 1
unit_price = "0 USD/core-hour"
"""

CLUSTER = """
[site.cluster]
kind = "slurm"
processors = 2
unit_price = "0 USD/core-hour"
reach = "127.0.0.1"
environment = {{ {environment} }}
"""

CLOUD = """
[site.cloud]
kind = "cloud"
provider = "ec2"
region = "eu-central-1"
options = {{ host = "127.0.0.1", port = {port}, secure = false }}
key_variable = "BURST_KEY"
secret_variable = "BURST_SECRET"
image = "{image}"
reach = "127.0.0.1"
python = "{python}"
prices = ["user"]
start_up = "4 s"
minimum = "10 s"

[[site.cloud.machine]]
type = "c5.xlarge"
processors = 4
most = 4
price = "0.194 USD"
price_date = "2026-11-01"
spot = {{ ceiling = "0.15 USD", price = "0.07 USD", odds = "5%", base = 1 }}
"""


def bursar(folder: Path, *words: str, accepted: tuple[int, ...] = (0,)) -> str:
    """Show a command, run it, and return what it says."""
    print(f"\n$ bursar {' '.join(words)}", flush=True)
    keys = {"BURST_KEY": "AKIAEXAMPLE", "BURST_SECRET": "example"}
    done = subprocess.run(
        [sys.executable, "-m", "bursar", *words],
        cwd=folder,
        env=os.environ | keys,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout, flush=True)
    if done.returncode not in accepted:
        raise SystemExit(f"exit status {done.returncode}")
    return done.stdout


@contextlib.contextmanager
def small_cluster(folder: Path) -> Iterator[str]:
    """Start a cluster with two processors; yield its part of the sites file, empty without one."""
    if absent := missing_programs():
        print(f"no Slurm here ({', '.join(absent)}): it goes without the cluster")
        yield ""
        return
    cluster = SlurmCluster.up(folder / "slurm", name="burst", nodes=1, cpus=2)
    try:
        pairs = (f'{name} = "{value}"' for name, value in cluster.environment.items())
        yield CLUSTER.format(environment=", ".join(pairs))
    finally:
        cluster.down()


def show(folder: Path, room: MachineRoom, cluster: str) -> None:
    """Plan, run and bill the campaign, and look for machines that were left."""
    cloud = CLOUD.format(port=room.port, image=IMAGE, python=sys.executable)
    (folder / "sites.toml").write_text(HOME + cluster + cloud)
    bursar(folder, "plan", str(CAMPAIGN), "--sites", "sites.toml")
    # A busy machine may miss the deadline, which the status says.
    bursar(
        folder, "run", str(CAMPAIGN), "--sites", "sites.toml", "--provisioning", "planned",
        "--name", "burst", accepted=(0, 5),
    )  # fmt: skip
    bursar(folder, "bill", "burst")
    bursar(folder, "sites", "list", "sites.toml")
    print(f"\nmachines that were bought: {len(room.machines())}, left: {len(room.left)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--no-cluster", action="store_true", help="Do without Slurm.")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="burst-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        room = stack.enter_context(machine_room(folder / "room", boot=1.0))
        cluster = "" if wanted.no_cluster else stack.enter_context(small_cluster(folder))
        show(folder, room, cluster)


if __name__ == "__main__":
    main()
