"""Three services, two of them over real Slurm, and this machine; one dies in the middle."""

import importlib.util
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
from tests.service.service_process import PATIENCE
from tests.testgrid.clusters import need_slurm

import bursar
from bursar.remote.access import Access, read_token
from bursar.remote.client import ServiceClient

EXAMPLE = Path(__file__).parents[2] / "examples" / "federation" / "federation.py"


def example() -> ModuleType:
    """The program of the example."""
    spec = importlib.util.spec_from_file_location("federation_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_campaign_outlives_one_of_its_services() -> None:
    """It ends in time and within its budget, and each service that lives is paid what it says."""
    with tempfile.TemporaryDirectory(prefix="bursar-") as folder:  # sockets want short paths
        outlive(Path(folder))


def outlive(tmp_path: Path) -> None:
    """In a folder of its own."""
    need_slurm()
    steps = (bursar.Shell("sleep 3"),)
    campaign = bursar.Campaign(
        name="few",
        workflow=bursar.Workflow(
            tuple(bursar.Task(id=f"t{i}", steps=steps, runtime=3.0) for i in range(16))
        ),
        goal=bursar.Goal(budget=2.0, deadline=60.0),
        root=tmp_path,
    )
    with example().federation(tmp_path, 2) as services:
        plain = services["plain"]
        sites = bursar.read_sites(tmp_path / "sites.toml")

        def kill() -> None:
            access = Access(
                url=plain.url,
                token=read_token(tmp_path / "plain.token"),
                ca=tmp_path / "certs" / "ca.pem",
            )
            with ServiceClient(access) as client:
                give_up = time.monotonic() + PATIENCE
                while not any(i.counts.running for i in client.instances()):
                    assert time.monotonic() < give_up
                    time.sleep(0.05)
            plain.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        run = bursar.run(campaign, sites=sites, runs=tmp_path / "runs", name="few")
        killer.join()

    assert run.succeeded
    assert run.exit_status == 0  # in time, too
    bill = run.bill()
    used = {item.site for item in bill.leases}
    assert "plain" in used
    assert used & {"slurm1", "slurm2"}
    assert 0 < bill.total <= 2_000_000
    assert sum(item.total for item in bill.leases) == bill.total
