"""The service runner: sockets, TLS, files, signals and notifications to systemd."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bursar.dispatch.credential import make_certificate
from bursar.model.errors import BursarError, InputError
from bursar.sealing.certificates import host_names_of, read_certificates
from bursar.service.config import ServiceConfig
from bursar.service.config_toml import read_service
from bursar.service.execution_service import ExecutionService, log_message
from bursar.service.http.http_connection import HttpListener, serve_http
from bursar.service.identity.authentication import provide_first_token
from bursar.service.identity.tls import ServerTls, TrustFiles
from bursar.service.interfaces import Clock, ServiceError
from bursar.service.logs import LOGGER
from bursar.service.startup import (
    ServiceIdentity,
    SteadyClock,
    load_identity,
    make_site_provider,
    save_identity,
)
from bursar.store import DiskBroken, DiskFull, RealDisk
from bursar.supervisor import TaskSupervisor
from bursar.worker.accounts import ResourceLimits

# Notifications to systemd: datagrams to the socket that the environment names (sd_notify(3)).


class SystemdNotifier:
    """
    Sends the service's state to systemd; does nothing where no socket is named.

    Parameters
    ----------
    environment
        Environment variables; None: those of the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        name = environment.get("NOTIFY_SOCKET", "")
        # A leading "@" stands for the NUL byte of an abstract socket (sd_notify(3)).
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        usec = environment.get("WATCHDOG_USEC", "")
        # A child process inherits the variables, but is not the one that systemd watches.
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = int(usec) / 1e6 if usec.isdecimal() and meant else None

    @property
    def every(self) -> float | None:
        """Seconds between two watchdog signals; None: systemd wants none."""
        return None if not self._address or not self._watchdog else self._watchdog / 2

    def ready(self, status: str) -> None:
        """Report that the service accepts requests."""
        self._notify(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being read again; :meth:`ready` follows."""
        self._notify("RELOADING=1")

    def stopping(self) -> None:
        """Report that the service stops."""
        self._notify("STOPPING=1")

    def alive(self) -> None:
        """Send a watchdog signal: the event loop is running."""
        self._notify("WATCHDOG=1")

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            try:
                channel.connect(self._address)
                channel.send(message.encode())
            except OSError:
                return  # it does not listen; that is no reason to end


# The service runner: sockets, TLS, files and signals of an execution service.

log = logging.getLogger(f"{LOGGER}.runner")

GRACE = 5.0
"""Seconds within which requests under way have to end when the service stops."""

ADMIN_TOKEN = "admin.token"
"""Name of the file with the first administrator's token, in the service's folder."""

_BACKLOG = 1_024

_FOLLOWED = 1.0
"""Seconds between two checks whether the time of day was put forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedService:
    """
    A service that accepts requests.

    Parameters
    ----------
    admin_token
        File with an administrator's token; None: administrators have certificates or other tokens.
    repaired
        Lines on what had to be repaired in the journal.
    """

    url: str
    admin_token: Path | None
    repaired: tuple[str, ...]


async def run_service(
    config: ServiceConfig,
    *,
    file: Path | None,
    drain_seconds: float,
    on_start: Callable[[StartedService], None],
) -> None:
    """
    Serve until a signal ends the service.

    SIGTERM and SIGINT drain it, and a second one ends it at once; SIGHUP reads certificates, prices
    and limits of users again.

    Parameters
    ----------
    file
        Configuration file, read again on SIGHUP; None: there is none.
    drain_seconds
        Seconds for which running tasks are waited for at the end; then the workers keep them.
    on_start
        Called once the service accepts requests.

    Raises
    ------
    InputError
        When the configuration cannot be carried out.
    BursarError
        When the service cannot go on; after a restart it continues where it was.
    """
    ResourceLimits().impose()  # its memory is full of secrets: there are no core files
    runner = ServiceRunner(config, file)
    try:
        await runner.run(drain_seconds, on_start)
    except (DiskFull, DiskBroken) as error:
        raise BursarError(f"{config.folder}: {error}") from None
    except ServiceError as error:
        raise BursarError(error.detail) from None


class ServiceRunner:
    """
    Runs an execution service with sockets, TLS, files and signals.

    Parameters
    ----------
    file
        Configuration file, read again on SIGHUP; None: there is none.
    """

    def __init__(self, config: ServiceConfig, file: Path | None) -> None:
        self._file = file
        self._clock = SteadyClock()
        self._tls, self._trust = _trust_of(config, self._clock)
        self._config = replace(config, names=_names(config))
        self._supervisor = SystemdNotifier()
        self._ending = asyncio.Event()
        self._second_signal = asyncio.Event()

    async def run(self, drain_seconds: float, on_start: Callable[[StartedService], None]) -> None:
        """Serve until a signal ends the service; see :func:`run_service`."""
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            folder = _make_folder(config)
            # The lock of the disk first: a second service on the same folder must change nothing
            # there.
            disk = RealDisk(folder / "journal")
            stack.callback(disk.close)
            stack.callback(self._clock.close)
            self._clock.keep(folder / "clock")  # the disk's lock is ours: nobody else notes there
            identity = await load_identity(disk, os.urandom)
            workers, identity = await _open_worker_socket(disk, identity)
            stack.callback(workers.close)
            identity = await _load_worker_certificate(disk, identity, config)
            service = self._make_service(identity, disk, workers)
            if config.worker_listen is not None:
                service.worker_server.open_listener(
                    config.worker_listen.host,
                    config.worker_listen.port,
                    identity.door_certificate,
                    identity.door_key.encode(),
                )
            # Before open(): a service that opens only in part must still be closed.
            stack.push_async_callback(service.close)
            repaired = await service.open()
            token = None
            if config.security != "mutual":  # there it says no more than a certificate does
                token = await _admin_token(service, config)
            loop = asyncio.get_running_loop()
            listener = await loop.create_server(
                service.worker_server.protocol, sock=workers, backlog=_BACKLOG
            )
            stack.callback(listener.close)
            listening = await serve_http(
                service.app,
                host=config.listen.host,
                port=config.listen.port,
                tls=self._tls.context if self._tls is not None else None,
                limits=config.http,
            )
            # Pushed after service.close, so it runs before: requests end while the service still
            # works.
            stack.push_async_callback(self._close_listeners, service, listening)
            await stack.enter_async_context(self._signals(service))
            url = _url(listening, secure=self._tls is not None)
            self._warn_of_certificate()
            if config.security == "none" and os.geteuid() == 0 and not config.tasks.local_user:
                log.warning("whoever is on this machine can run programs as root by this service")
            log.info("listening", extra={"fields": {"url": url, "security": config.security}})
            on_start(StartedService(url=url, admin_token=token, repaired=tuple(repaired)))
            self._supervisor.ready(f"listening on {url}")
            await self._serve(service)
            self._supervisor.stopping()
            await self._drain(service, drain_seconds)
        log.info("ended")

    def _make_service(
        self, identity: ServiceIdentity, disk: RealDisk, workers: socket.socket
    ) -> ExecutionService:
        config = self._config
        address: tuple[str, int] = workers.getsockname()[:2]
        tls = self._tls
        return ExecutionService(
            config,
            identity=identity,
            disk=disk,
            clock=self._clock,
            entropy=os.urandom,
            sites=make_site_provider(config, identity, log_message),
            address=address,
            trust=self._trust,
            seal=config.sealed.certificate.read_text() if config.sealed is not None else "",
            certificate_ends=lambda: tls.expires if tls is not None else None,
        )

    # While it serves.

    async def _serve(self, service: ExecutionService) -> None:
        """
        Serve until the service is to end.

        Raises
        ------
        BursarError
            When the service cannot go on.
        """
        async with TaskSupervisor() as tasks:
            failed = tasks.start(service.failed())
            ending = tasks.start(self._ending.wait())
            # A failure of one of these cancels the two that are waited for, and is raised.
            tasks.start(self._notify_watchdog())
            tasks.start(self._follow_clock(service))
            tasks.start(self._forecast(service))
            await asyncio.wait({failed, ending}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done() and not failed.cancelled():
                raise BursarError(f"{failed.result()}; start it again")

    async def _drain(self, service: ExecutionService, seconds: float) -> None:
        async with TaskSupervisor() as tasks:
            draining = tasks.start(service.drain(seconds))
            second_signal = tasks.start(self._second_signal.wait())
            await asyncio.wait({draining, second_signal}, return_when=asyncio.FIRST_COMPLETED)

    async def _close_listeners(self, service: ExecutionService, listening: HttpListener) -> None:
        service.app.end_streams()
        await listening.close(0.0 if self._second_signal.is_set() else GRACE)

    async def _notify_watchdog(self) -> None:
        every = self._supervisor.every
        while every is not None:
            self._supervisor.alive()
            await asyncio.sleep(every)

    async def _forecast(self, service: ExecutionService) -> None:
        """Forecast the instances, unless the configuration says not to."""
        if self._config.tasks.forecasts:
            await service.engine.make_forecasts()

    async def _follow_clock(self, service: ExecutionService) -> None:
        """Follow a clock that was put forward; nobody pays for the time jumped over."""
        while True:
            jump = self._clock.follow()
            if jump is not None:
                service.billing.skipped(*jump)
                log.warning("the clock was put forward by %.0f s", jump[1] - jump[0])
            await asyncio.sleep(_FOLLOWED)

    # Signals.

    @asynccontextmanager
    async def _signals(self, service: ExecutionService) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGTERM: self._end,
            signal.SIGINT: self._end,
            signal.SIGHUP: lambda: self._reload(service),
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self._ending.is_set():
            self._second_signal.set()
        self._ending.set()

    def _reload(self, service: ExecutionService) -> None:
        """Read certificates and configuration again; a file with an error changes nothing."""
        self._supervisor.reloading()
        self._reload_certificates()
        self._reload_file(service)
        self._supervisor.ready("read again")

    def _reload_certificates(self) -> None:
        try:
            if self._tls is not None:
                self._tls.reload()
                self._warn_of_certificate()
            if self._trust is not None:
                self._trust.refresh()
                if self._trust.problem:
                    log.error("%s", self._trust.problem)
        except BursarError as error:
            log.error("certificates stay as they were: %s", error)
        else:
            log.info("certificates were read again")

    def _reload_file(self, service: ExecutionService) -> None:
        """Apply prices and limits of users from the file, or nothing if the file has an error."""
        if self._file is None:
            return
        try:
            config = read_service(self._file)
        except BursarError as error:
            log.error("prices and limits stay as they were: %s", error)
            return
        site = config.site
        if site.pricing is not None or site.unit_price is not None:
            service.reprice(site)
        service.relimit(config)
        log.info("prices and limits were read again")

    def _warn_of_certificate(self) -> None:
        if self._tls is None:
            return
        warning = self._tls.warning(self._clock())
        if warning:
            log.warning("%s", warning)


def _trust_of(config: ServiceConfig, clock: Clock) -> tuple[ServerTls | None, TrustFiles | None]:
    """Return the TLS settings, and the check of clients' certificates."""
    files = config.certificates
    if files is None:
        return None, None
    if config.security != "mutual" or files.authorities is None:
        return ServerTls(files.certificate, files.key), None
    tls = ServerTls(files.certificate, files.key, files.authorities)
    return tls, TrustFiles(files.authorities, files.revoked, clock=clock)


def _names(config: ServiceConfig) -> tuple[str, ...]:
    """Return the names by which clients may call the service: configured or in its certificate."""
    names = dict.fromkeys((*config.names, config.listen.host))
    if config.certificates is not None:
        (own, *_) = read_certificates(config.certificates.certificate.read_bytes())
        names |= dict.fromkeys(host_names_of(own))
    return tuple(names)


def _make_folder(config: ServiceConfig) -> Path:
    """
    Make the service's folder; other accounts may pass through only if tasks run under them.

    Raises
    ------
    InputError
        When the folder cannot be made, or other accounts can write there.
    """
    accounts = [config.tasks.local_user, *(user.local_user for user in config.users.values())]
    mode = 0o711 if any(accounts) else 0o700
    try:
        config.folder.mkdir(mode=mode, parents=True, exist_ok=True)
        found = config.folder.stat()
        # What others have put there may lead anywhere, and theirs is what they can take away.
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise InputError(
                "expected a folder of the service's own, in which nobody else can write",
                where=str(config.folder),
            )
        config.folder.chmod(mode)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", where=str(config.folder)) from None
    return config.folder


async def _open_worker_socket(
    disk: RealDisk, identity: ServiceIdentity
) -> tuple[socket.socket, ServiceIdentity]:
    """
    Listen for workers on this machine, on the port of the last start if there was one.

    Raises
    ------
    BursarError
        When nobody can be listened to.
    """
    for port in dict.fromkeys((identity.port, 0)):
        # With its protocol named, asyncio sends what is small at once (TCP_NODELAY).
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", port))
            # Listening already, though nothing is accepted: workers that reconnect wait in the
            # backlog until the service has restored its state.
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            if not port:
                raise BursarError(f"cannot listen on 127.0.0.1: {error.strerror}") from None
            log.warning("port %d is taken: workers of the last life will not find it", port)
            continue
        listening.setblocking(False)
        found: int = listening.getsockname()[1]
        if found != identity.port:
            identity = msgspec.structs.replace(identity, port=found)
            await save_identity(disk, identity)
        return listening, identity
    raise AssertionError("port 0 is always tried last")


async def _load_worker_certificate(
    disk: RealDisk, identity: ServiceIdentity, config: ServiceConfig
) -> ServiceIdentity:
    """Return the identity with a certificate for the worker listener, made at most once."""
    if config.worker_listen is None or identity.door_certificate:
        return identity
    certificate, key = make_certificate()
    identity = msgspec.structs.replace(
        identity, door_certificate=certificate, door_key=key.decode()
    )
    await save_identity(disk, identity)
    return identity


async def _admin_token(service: ExecutionService, config: ServiceConfig) -> Path | None:
    """Return the file with the first administrator's token; None: it is not needed any more."""
    path = config.folder / ADMIN_TOKEN
    try:
        await provide_first_token(service.tokens, service.journal, path, config.owner)
    except ServiceError as error:  # a full disk: it serves those whom it knows
        log.warning("no administrator's token was made: %s", error.detail)
    return path if path.exists() else None


def _url(listening: HttpListener, *, secure: bool) -> str:
    host, port = listening.addresses[0][:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{host}:{port}"
