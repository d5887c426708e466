"""Values of the language, and how strings are compared."""

import string
from typing import Final, final


@final
class Exceptional:
    """
    The two values that stand for no value: :data:`UNDEFINED` and :data:`ERROR`.

    Both are false in Python, so that ``if requirement(ad)`` holds for neither.
    """

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word.upper()

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return self.word.upper()


UNDEFINED: Final = Exceptional("undefined")
"""Value of a missing attribute, and of operations on one."""

ERROR: Final = Exceptional("error")
"""Value of an operation on operands that do not fit, and of operations on an error."""

MOST = 2**63 - 1
"""Largest integer; the smallest is ``-MOST - 1``."""

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)


def lower(text: str) -> str:
    """Return the text with A to Z in lower case and nothing else changed, as in C."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def upper(text: str) -> str:
    """The text with a to z in upper case, and nothing else changed."""
    return text.upper() if text.isascii() else text.translate(_UPPER)


def fits(number: int) -> bool:
    """Whether an integer is one of the language, which has 64 bits."""
    return -MOST - 1 <= number <= MOST
