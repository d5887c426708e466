"""Dask distributed: a local cluster of single-threaded worker processes."""

import logging

import dask
from calls import arguments, measure, nap
from distributed import Client, LocalCluster, as_completed


def main() -> None:
    """One future for each call, gathered in batches as they come."""
    given = arguments()
    dask.config.set({"distributed.scheduler.work-stealing": False})
    with (
        LocalCluster(
            n_workers=given.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):

        def carry(calls: int) -> int:
            futures = client.map(nap, [given.seconds] * calls, pure=False)
            batches = as_completed(futures, with_results=True).batches()
            return sum(result == given.seconds for batch in batches for _, result in batch)

        measure(carry, given)


if __name__ == "__main__":
    main()
