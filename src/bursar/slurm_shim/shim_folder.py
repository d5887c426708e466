"""The folder of stand-ins: the commands themselves, and beside them what they share."""

import os
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from bursar.formats.file_text import read_text
from bursar.locking import lock_holder
from bursar.model.errors import BursarError, InputError
from bursar.remote.access import KnownService, find_service, services_file

REFUSED = {
    "sacctmgr": "accounts and budgets of a service: bursar account",
    "salloc": "sbatch hands a script over, and sbatch --wait waits for its end",
    "sbcast": "jobs see the folder in which they were submitted",
    "sdiag": "squeue says what waits, and squeue -o %r why",
    "sprio": "jobs begin in the order in which they were submitted",
    "sreport": "sacct says what each job used, bursar account show what it cost",
    "sshare": "what an account has left: bursar account show",
    "sstat": "sacct says what a job used once it has ended",
    "strigger": "sbatch --dependency=afterany:JOB begins a script when a job has ended",
}
"""Commands that only say what to use in their place."""

COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "sacct", "squeue", "srun", *REFUSED)
"""Commands that have a stand-in."""

_STATE = ".bursar"
_OWN = "own"  # name of the shim's own service
_END = 60.0  # seconds for the service to end
_DAYS = 3650.0  # the certificate of a service that only this user asks


class ShimSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Which service stand-ins talk to.

    Parameters
    ----------
    site
        URL or name of the service.
    services
        Path of the file that names services.
    is_own
        Whether the stand-ins start the service where it does not run.
    """

    site: str
    services: str
    is_own: bool = False


class ShimFolder:
    """
    The folder of stand-ins.

    Parameters
    ----------
    folder
        The folder, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._state = self.folder / _STATE

    @property
    def book(self) -> Path:
        """File of the jobs."""
        return self._state / "jobs.sqlite"

    @property
    def lock(self) -> Path:
        """File whose lock the process has that hands jobs over."""
        return self._state / "delivery.lock"

    @property
    def running(self) -> Path:
        """Folder of files that say where jobs run, for signals."""
        return self._state / "running"

    def running_file(self, number: int) -> Path:
        """Return the file that says where an element of a job runs."""
        return self.running / str(number)

    @property
    def start_lock(self) -> Path:
        """File whose lock the process has that starts the service."""
        return self._state / "start.lock"

    @property
    def service_file(self) -> Path:
        """Configuration of the shim's own service."""
        return self._state / "service.toml"

    @property
    def log(self) -> Path:
        """File of what the shim's own service prints."""
        return self._state / "service.log"

    @property
    def service_folder(self) -> Path:
        """Folder of the shim's own service."""
        return self._state / "service"

    def stop(self) -> bool:
        """
        End the shim's own service; jobs that run go on for a while, and wait for the next start.

        Returns
        -------
        bool
            Whether the service ran.

        Raises
        ------
        InputError
            When the folder's jobs go to another service.
        BursarError
            When the service does not end.
        """
        if not self.settings().is_own:
            raise InputError("its jobs go to another service", where=str(self.folder))
        holder = lock_holder(self.service_folder / "journal" / ".lock")
        if holder is None:
            return False
        if not holder.is_here:
            raise InputError(f"the service is {holder}", where=str(self.folder))
        os.kill(holder.process, signal.SIGTERM)
        give_up = time.monotonic() + _END
        while lock_holder(self.service_folder / "journal" / ".lock") == holder:
            if time.monotonic() > give_up:
                raise BursarError(f"the service, {holder}, does not end")
            time.sleep(0.05)
        return True

    def settings(self) -> ShimSettings:
        """
        Return the settings.

        Raises
        ------
        InputError
            When the folder holds no stand-ins, or the file was changed by hand and is wrong.
        """
        path = self._state / "shim.json"
        try:
            return msgspec.json.decode(read_text(path), type=ShimSettings)
        except (msgspec.MsgspecError, InputError) as error:
            raise InputError(
                f"holds no stand-ins of Slurm's commands: {error}",
                where=str(self.folder),
                hint="bursar slurm-shim writes them",
            ) from None

    def service(self) -> KnownService:
        """Return the service, and how to reach it."""
        settings = self.settings()
        return find_service(settings.site, {**os.environ, "BURSAR_SERVICES": settings.services})

    def write(self, site: str | None) -> None:
        """
        Write the stand-ins; jobs of earlier ones in the folder stay.

        Parameters
        ----------
        site
            URL or name of a service; None: a service of the shim's own, for this machine.

        Raises
        ------
        InputError
            When the service is not known, or something cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._state.mkdir(mode=0o700, exist_ok=True)
            self.running.mkdir(exist_ok=True)
            for name in COMMANDS:
                path = self.folder / name
                if path.exists() and "bursar.slurm_shim" not in path.read_text(errors="replace"):
                    raise InputError("is there already, and no stand-in", where=str(path))
            if site is not None:
                find_service(site)
                settings = ShimSettings(site=site, services=str(services_file().absolute()))
            else:
                settings = self._prepare_own()
            (self._state / "shim.json").write_bytes(msgspec.json.encode(settings))
            for name in COMMANDS:
                self._write_command(name)
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}", where=str(error.filename or self.folder)
            ) from None

    def _write_command(self, name: str) -> None:
        words = (sys.executable, "-P", "-m", "bursar.slurm_shim", str(self.folder), name)
        path = self.folder / name
        # In place of the old one as a whole: another process may start it meanwhile.
        new = path.with_name(f".{name}.new")
        new.write_text(
            f"#!/bin/sh\n# Stands for Slurm's {name}: its jobs go to Bursar.\n"
            f'exec {shlex.join(words)} "$@"\n'
        )
        new.chmod(0o755)
        new.replace(path)

    def _prepare_own(self) -> ShimSettings:
        """Write what the shim's own service needs: its file, a certificate, how to reach it."""
        from bursar.service.config_toml import read_service

        if not self.service_file.exists():
            self._write_service_file()
        config = read_service(self.service_file)  # a user may have changed it
        services = self._state / "services.toml"
        services.write_text(
            f"[service.{_OWN}]\n"
            f'url = "https://{config.listen}"\n'
            f'token_file = "{config.folder / "admin.token"}"\n'
            f'ca = "{self._state / "certs" / "ca.pem"}"\n'
        )
        return ShimSettings(site=_OWN, services=str(services), is_own=True)

    def _write_service_file(self) -> None:
        from bursar.service.identity.authority import AuthorityFolder

        certs = self._state / "certs"
        made = AuthorityFolder.create(certs, "slurm-shim", days=_DAYS).issue(
            "server", "slurm-shim", hosts=("127.0.0.1",), days=_DAYS
        )
        # Chosen once, so that the address stays the same however often the service is started.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.service_file.write_text(
            "# The service behind the stand-ins of Slurm's commands; see docs/guides/service.md.\n"
            "[service]\n"
            'name = "slurm-shim"\n'
            f'folder = "{self.service_folder}"\n'
            f'listen = "127.0.0.1:{port}"\n'
            'security = "tls"\n'
            f'certificate = "{made.identity}"\nkey = "{made.identity}"\n\n'
            "# What jobs may hold by --gres=gpu:N, --gpus and --licenses.\n"
            "[site]\n"
            'kind = "local"\n'
            "resources = {}  # such as { gpu = 2, matlab = 5 }\n"
        )
