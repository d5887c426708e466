"""
What copies and their catalogue cost, beside what bounds them.

A verified copy must at least copy the bytes and hash them: ``shutil.copyfile`` and SHA-256
over the result, with a final fsync, as a copy does. Registering must at least write the same
columns: bare SQLite, ``executemany`` and a commit. Each takes turns with its limit, so that
whatever else the machine does meets both alike; the ratio is the figure to trust.

    python benchmarks/transfers.py [--quick] [--json FILE]
"""

import asyncio
import hashlib
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from figures import Benchmark, Figure

from bursar.model.matching import Replica
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import CancellationToken, LogicalFileContent
from bursar.replicas.copying import copy
from bursar.replicas.parts import PartialFile
from bursar.replicas.stager import Stager
from bursar.replicas.storage import FolderStorage

SUM = "sha256:" + "0" * 64


def seconds(work: Callable[[], object]) -> float:
    """Of one go."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def plain_copy(source: Path, target: Path) -> None:
    """Copied, on disk, and hashed."""
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
        hashlib.file_digest(file, "sha256")


def our_copy(source: Path, folder: Path) -> None:
    """Copied and verified on the way, on disk, renamed."""
    with PartialFile(folder, "x") as part:
        copy(str(source), LogicalFileContent(), part, stop=CancellationToken())
        part.sync()
        part.put(folder / "ours")


def measure_copies(size: int, rounds: int) -> list[Figure]:
    """Bytes per second, in turns."""
    ours, plain = [], []
    with tempfile.TemporaryDirectory(prefix="bursar-transfers-") as name:
        folder = Path(name)
        source = folder / "source"
        source.write_bytes(os.urandom(size))
        for _ in range(rounds):
            plain.append(seconds(lambda: plain_copy(source, folder / "plain")))
            (folder / "plain").unlink()
            ours.append(seconds(lambda: our_copy(source, folder)))
            (folder / "ours").unlink()
    ratio = statistics.median(p / o for p, o in zip(plain, ours, strict=True))
    return [
        Figure("copyfile, fsync and SHA-256", size / statistics.median(plain) / 1e6, "MB/s"),
        Figure("verified copy", size / statistics.median(ours) / 1e6, "MB/s"),
        Figure("verified / plain, median of turns", ratio, ""),
    ]


def measure_small(count: int) -> list[Figure]:
    """Small files through stager, storage and catalogue: each durable, registered and pinned."""
    with tempfile.TemporaryDirectory(prefix="bursar-transfers-") as name:
        folder = Path(name)
        (folder / "masters").mkdir()
        names = [f"f{n}" for n in range(count)]
        for one in names:
            (folder / "masters" / one).write_bytes(one.encode())
        with Catalogue(folder / "c.sqlite") as catalogue:
            catalogue.register_all(
                Replica(name=one, site="south", url=str(folder / "masters" / one)) for one in names
            )

            async def bring(job: str) -> float:
                stager = Stager(catalogue, {"north": FolderStorage(folder / "north")})
                began = time.perf_counter()
                await stager.bring(names, "north", job)
                took = time.perf_counter() - began
                stager.close()
                return took

            first, again = asyncio.run(bring("one")), asyncio.run(bring("two"))
    return [
        Figure("small files brought", count / first, "1/s"),
        Figure("small files that are there already", count / again, "1/s"),
    ]


def measure_catalogue(count: int, rounds: int) -> list[Figure]:
    """Names per second registered in one transaction, and located in one query."""
    replicas = [
        Replica(name=f"run/{n:07}", site="north", url=f"/data/{n:07}", size=n, checksum=SUM)
        for n in range(count)
    ]
    names = [replica.name for replica in replicas]
    ours, bare, located = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="bursar-transfers-") as name:
            bare.append(seconds(lambda: bare_rows(Path(name) / "bare", replicas)))
            with Catalogue(Path(name) / "c.sqlite") as catalogue:
                ours.append(seconds(lambda: catalogue.register_all(replicas)))
                located.append(seconds(lambda: catalogue.locate_all(names)))
    middle = statistics.median
    return [
        Figure("bare SQLite rows", count / middle(bare), "1/s"),
        Figure("registered", count / middle(ours), "1/s"),
        Figure("share of bare SQLite", 100 * middle(bare) / middle(ours), "%"),
        Figure("located", count / middle(located), "1/s"),
    ]


def bare_rows(path: Path, replicas: list[Replica]) -> None:
    """The same columns in two tables with the same keys, unchecked."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.executescript(
            "CREATE TABLE f (number INTEGER PRIMARY KEY, name UNIQUE, size, checksum);"
            "CREATE TABLE c (file, url, site, bad, PRIMARY KEY (file, url)) WITHOUT ROWID;"
            "CREATE INDEX s ON c (site, file);"
        )
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "INSERT INTO f VALUES (?,?,?,?)",
            [(n, r.name, r.size, r.checksum) for n, r in enumerate(replicas)],
        )
        db.executemany(
            "INSERT INTO c VALUES (?,?,?,NULL)",
            [(n, r.url, r.site) for n, r in enumerate(replicas)],
        )
        db.execute("COMMIT")


def main() -> None:
    """Measure one thing after the other."""
    bench = Benchmark(__file__, __doc__)
    size, small, names = bench.of(
        (300_000_000, 1_000, 100_000), (30_000_000, 100, 10_000), (100_000, 5, 100)
    )
    rounds = bench.of(5, 2, 1)
    bench.figures(f"copies of {size / 1e6:g} MB", measure_copies(size, rounds))
    bench.figures(f"{small:,} small files", measure_small(small))
    bench.figures(f"a catalogue of {names:,} names", measure_catalogue(names, rounds))
    bench.write()


if __name__ == "__main__":
    main()
