"""Dask clusters for tests: real schedulers and workers, as programs of their own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import bursar
from bursar.model.site import DaskEndpoint

_DASK = Path(sys.executable).with_name("dask")
_PATIENCE = 60.0


@dataclass
class DaskCluster:
    """
    A scheduler and its workers.

    Parameters
    ----------
    folder
        For its files.
    threads
        Of each worker.
    tls
        Certificate, key and authority, PEM files; none: in clear.
    """

    folder: Path
    threads: Sequence[int] = (2,)
    tls: tuple[Path, Path, Path] | None = None
    address: str = ""
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __enter__(self) -> "DaskCluster":
        self.folder.mkdir(parents=True, exist_ok=True)
        told = self.folder / "scheduler.json"
        secure = ["--protocol", "tls", *self._secured()] if self.tls else []
        host = "tls://127.0.0.1" if self.tls else "127.0.0.1"
        where = ["--host", host, "--port", "0", "--scheduler-file", str(told)]
        self._start("scheduler", *where, *secure)
        try:
            self.address = self._address(told)
            for threads in self.threads:
                self.add_worker(threads)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def add_worker(self, threads: int) -> None:
        """One more, which is started again when it dies; it may take a moment to come."""
        self._start(
            "worker",
            self.address,
            *("--nworkers", "1", "--nthreads", str(threads), "--host", "127.0.0.1"),
            *("--local-directory", str(self.folder), "--memory-limit", "0"),
            *self._secured(),
        )

    def kill_scheduler(self) -> None:
        """At once."""
        self._processes[0].kill()
        self._processes[0].wait()

    def facts(self, processors: int | None = None, **more: Any) -> bursar.SiteFacts:
        """It as a site, at a price of 1 EUR a processor-second."""
        certificate, key, ca = map(str, self.tls) if self.tls else ("", "", "")
        return bursar.SiteFacts(
            name="dask",
            kind="dask",
            processors=sum(self.threads) if processors is None else processors,
            unit_price=1.0,
            currency="EUR",
            dask=DaskEndpoint(scheduler=self.address, ca=ca, certificate=certificate, key=key),
            **more,
        )

    def ask(self, function: Any, *given: Any) -> dict[str, Any]:
        """What each worker answers, by address; once all are there."""
        return asyncio.run(self._ask(function, *given))

    async def _ask(self, function: Any, *given: Any) -> dict[str, Any]:
        import distributed

        async with distributed.Client(  # type: ignore[no-untyped-call]
            self.address, asynchronous=True, set_as_default=False, security=self._security()
        ) as client:
            await client.wait_for_workers(len(self.threads), timeout=_PATIENCE)
            said: dict[str, Any] = await client.run(function, *given)
            return said

    def _security(self) -> Any:
        if self.tls is None:
            return None
        import distributed

        certificate, key, ca = map(str, self.tls)
        return distributed.Security(  # type: ignore[no-untyped-call]
            tls_ca_file=ca,
            tls_client_cert=certificate,
            tls_client_key=key,
            require_encryption=True,
        )

    def _secured(self) -> list[str]:
        if self.tls is None:
            return []
        names = ("--tls-cert", "--tls-key", "--tls-ca-file")
        return [word for pair in zip(names, map(str, self.tls), strict=True) for word in pair]

    def _start(self, role: str, *words: str) -> None:
        with (self.folder / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(_DASK), role, *words, "--no-dashboard"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

    def _address(self, told: Path) -> str:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self._processes[0].poll() is None:
            if told.exists() and (text := told.read_text()):
                return str(json.loads(text)["address"])
            time.sleep(0.05)
        raise RuntimeError((self.folder / "scheduler.log").read_text())
