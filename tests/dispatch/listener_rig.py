"""
Processes that listen for TLS connections, one for each kind of listener that Bursar has.

    python -m tests.dispatch.listener_rig service-workers|run-workers FOLDER

prints the port and listens until it is killed.
"""

import asyncio
import os
import sys
from pathlib import Path

from tests.dispatch.conftest import Room

from bursar.dispatch.credential import PilotTerms, make_certificate
from bursar.dispatch.journal_records import epoch_of
from bursar.model.site import SiteFacts
from bursar.service.config import MarketSettings, ServiceConfig
from bursar.service.execution_service import ExecutionService
from bursar.service.startup import load_identity, make_site_provider
from bursar.store import RealDisk


async def listen_for_workers_of_a_service(folder: Path) -> None:
    """Open the port at which workers of a service's pilots report."""
    loop = asyncio.get_running_loop()
    epoch = epoch_of(loop)
    config = ServiceConfig(
        name="here",
        folder=folder,
        site=SiteFacts(name="here", kind="local", processors=1),
        selling=MarketSettings(must_buy=True),  # starts no workers of its own
    )
    disk = RealDisk(folder / "journal")
    identity = await load_identity(disk, os.urandom)
    house = ExecutionService(
        config,
        identity=identity,
        disk=disk,
        clock=lambda: epoch + loop.time(),
        entropy=os.urandom,
        sites=make_site_provider(config, identity, lambda line: None),
        address=("127.0.0.1", 0),
    )
    await house.open()
    certificate, key = make_certificate()
    house.worker_server.open_listener("127.0.0.1", 0, certificate, key)
    house.worker_server.expect("lease-1", pool="shared", site="here", processors=1)
    credential = await house.worker_server.credential(
        PilotTerms(lease="lease-1", site="here", host="127.0.0.1", processors=1)
    )
    print(credential.decode(), flush=True)
    await house.failed()


async def listen_for_workers_of_a_run(folder: Path) -> None:
    """Open the port at which workers of a run's pilots report."""
    dispatcher = Room(folder).dispatcher([])
    await dispatcher.start()
    credential = await dispatcher.pilot_listener.credential(
        PilotTerms(lease="lease-1", site="here", host="127.0.0.1", processors=1)
    )
    print(credential.decode(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    kinds = {
        "service-workers": listen_for_workers_of_a_service,
        "run-workers": listen_for_workers_of_a_run,
    }
    asyncio.run(kinds[sys.argv[1]](Path(sys.argv[2])))
