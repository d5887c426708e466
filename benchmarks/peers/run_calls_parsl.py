"""Parsl: the high-throughput executor with as many workers on this machine."""

import tempfile

import parsl
from calls import arguments, measure, nap
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider


def main() -> None:
    """One app call for each future."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            executors=[
                HighThroughputExecutor(
                    label="local",
                    address="127.0.0.1",
                    # Else there are no more workers than processors.
                    cores_per_worker=1e-3,
                    max_workers_per_node=given.workers,
                    prefetch_capacity=given.workers,
                    provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
                )
            ],
            run_dir=folder,
            initialize_logging=False,
            strategy="none",
        )
        with parsl.load(config):
            app = parsl.python_app(nap)

            def carry(calls: int) -> int:
                futures = [app(given.seconds) for _ in range(calls)]
                return sum(future.result() == given.seconds for future in futures)

            measure(carry, given)


if __name__ == "__main__":
    main()
