"""The physical limit: two processes that do nothing but start ``/bin/echo`` and read its pipe."""

import os
from multiprocessing import get_context
from multiprocessing.connection import Connection

from job import WORKERS, arguments, measure


def spawn_loop(orders: Connection) -> None:
    """Runs what it is sent until it is sent None."""
    with open(os.devnull) as null:
        while (numbers := orders.recv()) is not None:
            orders.send([spawn(number, null.fileno()) for number in numbers])


def spawn(number: int, null: int) -> str:
    """What one ``/bin/echo`` prints to either stream."""
    reader, writer = os.pipe()
    pid = os.posix_spawn(
        "/bin/echo",
        ["/bin/echo", str(number)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, writer, 1),
            (os.POSIX_SPAWN_DUP2, writer, 2),
        ],
    )
    os.close(writer)
    printed = b""
    while part := os.read(reader, 65536):
        printed += part
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"/bin/echo ended with {status}")
    return printed.decode()


def main() -> None:
    """Splits the numbers between two loops."""
    given = arguments()
    context = get_context("spawn")
    lines, processes = [], []
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=spawn_loop, args=(theirs,))
        process.start()
        lines.append(ours)
        processes.append(process)

    def carry(numbers: list[int]) -> list[str]:
        for i, line in enumerate(lines):
            line.send(numbers[i::WORKERS])
        return [text for line in lines for text in line.recv()]

    measure(carry, given.commands)
    for line, process in zip(lines, processes, strict=True):
        line.send(None)
        process.join()


if __name__ == "__main__":
    main()
