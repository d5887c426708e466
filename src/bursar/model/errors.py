"""
The tree of exceptions that Bursar raises.

::

    BursarError
    |-- InputError        the user's input is at fault; exit status 2
    |-- Infeasible        no plan meets the goal; exit status 3
    |-- BudgetStop        the budget stopped the campaign; exit status 4
    |-- DeadlineMissed    the campaign ended after its deadline; exit status 5
    `-- SiteError         a site failed; ``transient`` says if trying again may help

A caller asks two things of an error: is it my input, and is trying again worth it?
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def printable(text: str) -> str:
    """Return a text as one line, characters that would move a cursor as Python writes them."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class BursarError(Exception):
    """
    Root of every error this package raises on purpose.

    Attributes
    ----------
    exit_status
        Status of the ``bursar`` command when this error ends it.
    transient
        True when the same call may succeed later.
    """

    exit_status = 1
    transient = False


class InputError(BursarError, ValueError):
    """
    The user's input is at fault.

    Parameters
    ----------
    message
        What was found and what was expected, one line.
    where
        File, with line or field where there is one: ``"sweep.pln:3:11"``,
        ``"campaign.toml: tasks.align.inputs"``. Empty when the reader does
        not know it; callers up the stack may add it with :meth:`within`.
    hint
        One line that may help, or None.
    """

    exit_status = 2

    def __init__(self, message: str, *, where: str = "", hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        line = printable(f"{self.where}: {self.message}" if self.where else self.message)
        return f"{line}\nhint: {printable(self.hint)}" if self.hint else line

    def within(self, outer: str) -> "InputError":
        """The same error, seen from the file or field that holds it."""
        where = f"{outer}: {self.where}" if self.where else outer
        return InputError(self.message, where=where, hint=self.hint)


@contextmanager
def errors_within(outer: str) -> Iterator[None]:
    """Have input errors of a block name the file or field that holds their place."""
    try:
        yield
    except InputError as error:
        raise error.within(outer) from None


class Infeasible(BursarError):
    """No plan meets the goal. The answer carries counter-offers, not a traceback."""

    exit_status = 3


class BudgetStop(BursarError):
    """The budget stopped the campaign before every task had run."""

    exit_status = 4


class DeadlineMissed(BursarError):
    """The campaign ended after its deadline."""

    exit_status = 5


class SiteError(BursarError):
    """A site did not do what it was asked."""

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


def spelling_hint(word: str, known: Iterable[str]) -> str | None:
    """
    Hint for a word that is not known: ``did you mean "..."?``, or None.
    """
    import difflib  # seldom wanted, and workers load this module on the way to their first task

    close = difflib.get_close_matches(word, list(known), n=1)
    return f'did you mean "{close[0]}"?' if close else None
