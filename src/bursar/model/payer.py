"""The account that pays for a run."""

import msgspec


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """
    A user's account in a book, which pays for a run.

    Parameters
    ----------
    account
        Name of a user of the book.
    book
        Absolute path of the book's file.
    budget
        Currency units that the user allows the run in all, besides what the account allows;
        None: no further limit.
    """

    account: str
    book: str
    budget: float | None = None
