"""Adapters to local resource managers behind one interface, and the choice of a site's adapter."""

from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm.command_runner import CommandRunner
from bursar.provisioning.lrm.resource_manager import ResourceManager


def manager_of(batch: BatchScheduler, shell: CommandRunner | None = None) -> ResourceManager:
    """
    The adapter that a site needs; the others are not imported.

    Parameters
    ----------
    shell
        Runs the commands; None: as the site says.

    Raises
    ------
    InputError
        When the scheduler has no such thing as the site names.
    """
    match batch.manager:
        case "slurm":
            from bursar.provisioning.lrm.slurm import Slurm

            return Slurm(batch, shell)
        case "gridengine":
            from bursar.provisioning.lrm.gridengine import GridEngine

            return GridEngine(batch, shell)
        case "pbs":
            from bursar.provisioning.lrm.pbs import PBS

            return PBS(batch, shell)
        case "lsf":
            from bursar.provisioning.lrm.lsf import LSF

            return LSF(batch, shell)
        case "flux":
            from bursar.provisioning.lrm.flux import Flux

            return Flux(batch, shell)
