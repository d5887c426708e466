"""Bursar: an Executor over a local site with as many processors as workers are asked for."""

import tempfile
from concurrent.futures import as_completed
from pathlib import Path

from calls import arguments, measure, nap

from bursar import Executor


def main() -> None:
    """One call for each future; a result counts when its journal entry is durable."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        sites = Path(folder) / "sites.toml"
        sites.write_text(f'[[site]]\nname = "here"\nprocessors = {given.workers}\n')
        with Executor(given.workers, sites=sites) as executor:

            def carry(calls: int) -> int:
                futures = [executor.submit(nap, given.seconds) for _ in range(calls)]
                return sum(future.result() == given.seconds for future in as_completed(futures))

            measure(carry, given)


if __name__ == "__main__":
    main()
