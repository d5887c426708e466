"""Objects through which a run, or an executor of calls, uses sites other than this machine."""

from pathlib import Path

from bursar.model.site import SiteFacts
from bursar.sites.protocol import Site


def site_elsewhere(facts: SiteFacts, *, run: str, folder: Path, pilots: Path) -> Site | None:
    """
    Return the object that runs tasks at a site; None for this machine, and where nothing can run.

    Parameters
    ----------
    run
        Identity by which the site knows the run.
    folder, pilots
        Folder of the run, beside which what is learned of queues and machines is kept, and the one
        in it for credentials and records of pilots.
    """
    if facts.batch is not None:
        from bursar.sites.batch import BatchSite

        return BatchSite(facts, run=run, folder=pilots, history=folder.parent)
    if facts.cloud is not None:
        from bursar.sites.cloud.cloud_site import CloudSite

        return CloudSite(facts, run=run, folder=pilots, runs=folder.parent)
    if facts.remote is not None:
        from bursar.sites.remote.lot_site import service_site

        return service_site(facts, run=run, folder=pilots)
    if facts.ssh is not None:
        from bursar.sites.ssh_site import SshSite

        return SshSite(facts, run=run, folder=str(folder.absolute()))
    if facts.dask is not None:
        from bursar.sites.dask.dask_site import DaskSite

        return DaskSite(facts, run, folder)
    return None
