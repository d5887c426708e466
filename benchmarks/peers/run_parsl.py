"""Parsl: the high-throughput executor with two workers on this machine."""

import tempfile

import parsl
from job import WORKERS, arguments, chunks, echo, measure
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

PREFETCH = 64
"""Tasks a manager may hold beyond those that run; without any it is slower."""


def main() -> None:
    """One app call for each task."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            executors=[
                HighThroughputExecutor(
                    label="local",
                    address="127.0.0.1",
                    max_workers_per_node=WORKERS,
                    prefetch_capacity=PREFETCH,
                    provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
                )
            ],
            run_dir=folder,
            initialize_logging=False,
            strategy="none",
        )
        with parsl.load(config):
            app = parsl.python_app(echo)

            def carry(numbers: list[int]) -> list[str]:
                futures = [app(chunk) for chunk in chunks(numbers, given.chunk)]
                return [text for future in futures for text in future.result()]

            measure(carry, given.commands)


if __name__ == "__main__":
    main()
