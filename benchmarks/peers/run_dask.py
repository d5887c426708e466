"""Dask distributed: a local cluster of two single-threaded worker processes."""

import logging

import dask
from distributed import Client, LocalCluster, as_completed
from job import WORKERS, arguments, chunks, echo, measure


def main() -> None:
    """One future for each task, gathered in batches as they come."""
    given = arguments()
    dask.config.set({"distributed.scheduler.work-stealing": False})
    with (
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):

        def carry(numbers: list[int]) -> list[str]:
            futures = client.map(echo, chunks(numbers, given.chunk), pure=False)
            return [
                text
                for batch in as_completed(futures, with_results=True).batches()
                for _, printed in batch
                for text in printed
            ]

        measure(carry, given.commands)


if __name__ == "__main__":
    main()
