"""Outputs of schedulers, and a shell that plays them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bursar.provisioning.lrm.command_runner import CommandResult, CommandRunner


def text_of(name: str) -> str:
    """A recorded output."""
    return (Path(__file__).parent / name).read_text()


class Recorded(CommandRunner):
    """
    Answers commands by the longest beginning that it knows.

    Attributes
    ----------
    asked
        Commands with what they were told on their input, in their order.
    """

    def __init__(self, answers: Mapping[str, CommandResult]) -> None:
        super().__init__()
        self._answers = answers
        self.asked: list[tuple[tuple[str, ...], str]] = []

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: str | bytes = "",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        self.commands += 1
        self.asked.append((tuple(command), stdin if isinstance(stdin, str) else stdin.decode()))
        line = " ".join(command)
        known = [start for start in self._answers if line.startswith(start)]
        assert known, f"nothing is recorded for: {line}"
        return self._answers[max(known, key=len)]
