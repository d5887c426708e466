"""The tables of sites that others share: batch schedulers, Dask clusters and other Bursars."""

import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from bursar.formats.quantities import Duration
from bursar.formats.site_tables import LeasedSiteTable, Processors, Text
from bursar.model.dask import DaskEndpoint
from bursar.model.errors import InputError
from bursar.model.provisioning import BatchScheduler, Manager
from bursar.model.remote import PATIENCE, RemoteEndpoint, SealLevel, Trust

_NO_NUMBER = "how many processors may be held there at a time?"

_DASK_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}")


class BatchSiteTable(LeasedSiteTable, frozen=True, kw_only=True):
    """A cluster whose processors come through a batch scheduler."""

    noun: ClassVar[str] = "a batch scheduler"
    provider: ClassVar[str] = "batch"
    needed: ClassVar = {"processors": _NO_NUMBER}
    manager: ClassVar[Manager]

    processors: Annotated[
        Processors, Meta(description="Greatest number of processors held there at a time.")
    ]
    queue: Annotated[
        Text | None, Meta(description="Partition or queue; default: the scheduler's.")
    ] = None
    account: Annotated[
        Text | None, Meta(description="Account that jobs are charged to; default: the user's.")
    ] = None
    qos: Annotated[
        Text | None,
        Meta(description="Quality of service of the jobs; default: the user's."),
    ] = None
    directives: Annotated[
        tuple[Text, ...],
        Meta(description="Directives for job scripts, without #SBATCH or the like."),
    ] = ()
    setup: Annotated[tuple[str, ...], Meta(description="Lines of shell that jobs run first.")] = ()
    environment: Annotated[
        dict[str, str], Meta(description="Environment variables of the scheduler's commands.")
    ] = msgspec.field(default_factory=dict)
    ssh: Annotated[
        Text | None,
        Meta(
            description="Login node where the scheduler's commands are run; default: this machine."
        ),
    ] = None
    python: Annotated[
        Text | None,
        Meta(description="Interpreter on the nodes that has Bursar; default: the one in use here."),
    ] = None
    folder: Annotated[
        Text | None,
        Meta(
            description="Folder of pilots' files, seen alike by this machine and the nodes; "
            "default: in the run's folder."
        ),
    ] = None
    reach: Annotated[
        Text | None,
        Meta(
            description="Host or address by which the nodes reach this machine; default: its name."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        words = ("queue", "account", "qos")
        texts = (*words, "directives", "setup", "ssh", "python", "folder", "reach")
        for key in texts:
            value = getattr(self, key)
            for line in value if isinstance(value, tuple) else [value or ""]:
                # A line end would begin another directive or command in the job script.
                if set(line) & set("\n\r\0"):
                    raise InputError("expected single lines", where=key)
        for key in words:
            if any(c.isspace() for c in getattr(self, key) or ""):
                raise InputError("expected a word", where=key)
        # ssh would take it for an option, and options can run programs (ProxyCommand).
        if self.ssh and self.ssh.startswith("-"):
            raise InputError("expected a host", where="ssh")
        if self.ssh and self.folder and not self.folder.startswith("/"):
            raise InputError(
                "expected a path from the root, as the login node has it", where="folder"
            )

    def endpoint(self, folder: Path) -> dict[str, Any]:
        pilots = self.folder
        if pilots is not None and not self.ssh:
            pilots = str((folder / pilots).absolute())
        batch = BatchScheduler(
            manager=self.manager,
            queue=self.queue,
            account=self.account,
            qos=self.qos,
            directives=self.directives,
            setup=self.setup,
            environment=self.environment,
            ssh=self.ssh,
            python=self.python,
            folder=pilots,
            reach=self.reach,
        )
        return {"processors": self.processors, "batch": batch}


class SlurmSiteTable(BatchSiteTable, frozen=True, tag="slurm"):
    """A cluster of Slurm."""

    manager: ClassVar[Manager] = "slurm"


class GridEngineSiteTable(BatchSiteTable, frozen=True, tag="gridengine"):
    """A cluster of Grid Engine."""

    manager: ClassVar[Manager] = "gridengine"


class PbsSiteTable(BatchSiteTable, frozen=True, tag="pbs"):
    """A cluster of PBS."""

    manager: ClassVar[Manager] = "pbs"


class LsfSiteTable(BatchSiteTable, frozen=True, tag="lsf"):
    """A cluster of LSF."""

    manager: ClassVar[Manager] = "lsf"


class FluxSiteTable(BatchSiteTable, frozen=True, tag="flux"):
    """A cluster of Flux."""

    manager: ClassVar[Manager] = "flux"


class TlsSiteTable(LeasedSiteTable, frozen=True):
    """A site that is reached over TLS."""

    ca: Annotated[
        Text | None,
        Meta(description="Authority that signed the other end's certificate, a PEM file."),
    ] = None
    certificate: Annotated[
        Text | None, Meta(description="Our own certificate, a PEM file, relative to this file.")
    ] = None
    key: Annotated[
        Text | None, Meta(description="Key of our certificate, a PEM file, relative to this file.")
    ] = None


class DaskSiteTable(TlsSiteTable, frozen=True, tag="dask", kw_only=True):
    """A Dask cluster that is there."""

    noun: ClassVar[str] = "a Dask cluster"
    provider: ClassVar[str] = "dask"
    needed: ClassVar = {
        "processors": _NO_NUMBER,
        "scheduler": (
            "expected the address of its scheduler, as tcp://host:8786 or tls://host:8786"
        ),
    }
    refused: ClassVar = {"trust": "Dask's own protocol loads pickles whatever is said here"}

    scheduler: Annotated[
        str, Meta(description="Address of the scheduler: tcp://host:port or tls://host:port.")
    ]
    processors: Annotated[
        Processors, Meta(description="Greatest number of processors held there at a time.")
    ]

    def __post_init__(self) -> None:
        super().__post_init__()
        found = _DASK_ADDRESS.fullmatch(self.scheduler)
        if found is None or not 0 < int(found[3]) < 65536:
            raise InputError(self.needed["scheduler"], where="scheduler")
        for key in ("ca", "certificate", "key"):
            given = getattr(self, key) is not None
            if found[1] == "tls" and not given:
                raise InputError("a tls:// scheduler needs it", where=key)
            if found[1] != "tls" and given:
                raise InputError("goes with a tls:// scheduler only", where=key)

    def endpoint(self, folder: Path) -> dict[str, Any]:
        endpoint = DaskEndpoint(
            scheduler=self.scheduler,
            **{key: _file(key, getattr(self, key), folder) for key in ("ca", "certificate", "key")},
        )
        return {"processors": self.processors, "dask": endpoint}


class RemoteSiteTable(TlsSiteTable, frozen=True, tag="remote", kw_only=True):
    """Another Bursar that serves."""

    noun: ClassVar[str] = "another Bursar"
    provider: ClassVar[str] = "remote"
    needed: ClassVar = {
        "processors": _NO_NUMBER,
        "url": "expected its address, https://HOST:PORT",
    }

    url: Annotated[str, Meta(description="Address of the service: https://host:port.")]
    processors: Annotated[
        Processors, Meta(description="Greatest number of processors held there at a time.")
    ]
    token_file: Annotated[
        Text | None,
        Meta(description="File with our token for the service, which nobody else may read."),
    ] = None
    fingerprint: Annotated[
        Text | None, Meta(description="SHA-256 of the other Bursar's certificate, hexadecimal.")
    ] = None
    seal: Annotated[
        SealLevel | bool,
        Meta(
            description="Seal tasks and results, so that the other Bursar cannot read them: by one "
            "key for all (also true), or by one key for each."
        ),
    ] = False
    patience: Annotated[
        Duration,
        Meta(
            description="How long it may be unreachable before its processors count as lost; 30 s."
        ),
    ] = PATIENCE
    trust: Annotated[
        Trust,
        Meta(
            description='Results of Python calls come back as "data", which can run no code here, '
            'or as "pickle", by which it can.'
        ),
    ] = "data"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _URL.fullmatch(self.url):
            raise InputError(self.needed["url"], where="url")
        tls = ("ca", "certificate", "key", "fingerprint", "seal")
        for key in tls if self.url.startswith("http:") else ():
            if getattr(self, key):
                raise InputError("goes with an https:// address only", where=key)
        if self.fingerprint is not None and not _FINGERPRINT.fullmatch(self.fingerprint):
            raise InputError("expected a SHA-256, 64 hexadecimal digits", where="fingerprint")
        if self.key is not None and self.certificate is None:
            raise InputError("a private key needs its certificate", where="key")
        if self.seal and not (self.ca and self.certificate):
            raise InputError('needs "ca" and "certificate"', where="seal")

    def endpoint(self, folder: Path) -> dict[str, Any]:
        files = ("token_file", "ca", "certificate", "key")
        paths = {key: _file(key, getattr(self, key), folder) for key in files}
        if paths["token_file"]:
            _check_private(paths["token_file"], "token_file")
        endpoint = RemoteEndpoint(
            url=self.url.rstrip("/"),
            fingerprint=self.fingerprint or "",
            seal="conversation" if self.seal is True else self.seal or None,
            patience=self.patience,
            trust=self.trust,
            **paths,
        )
        return {"processors": self.processors, "remote": endpoint}


def _file(key: str, said: str | None, folder: Path) -> str:
    """Return the absolute path of a file that must exist; empty where none is named."""
    if said is None:
        return ""
    path = folder / Path(said).expanduser()
    if not path.is_file():
        raise InputError(f"no file {path}", where=key)
    return str(path.absolute())


def _check_private(path: str, where: str) -> None:
    """Refuse a file that others than its owner may read, write or execute."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    # Whoever can read the token can spend the user's money at the service.
    if mode & 0o077:
        raise InputError(
            f"{path} may be read by others, its mode is {mode:04o}",
            where=where,
            hint=f"chmod 600 {path}",
        )
