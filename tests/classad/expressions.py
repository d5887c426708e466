"""
Random expressions and ads, as text.

All operators and functions of the language occur, most of them senselessly, since it is the odd
argument that two implementations take differently. Equal seeds give equal text.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from bursar.classad import Expression, parse
from bursar.classad.parsing import SIGNATURES

NAMES = ("a", "b", "c", "d", "Load", INNER := "inner", "absent")
"""Attributes; no ad has the last one, and the one before it is an ad where it is there."""

NUMBERS = (
    *("0", "1", "-1", "2", "3", "7", "-7", "9", "100", "-100", "0.5", "-2.5", "3.0", "0.0"),
    *("-0.0", "1e3", "64", "9007199254740993", "017.5", "1e308", "-.5"),
)
STRINGS = (
    *('""', '" "', '"x"', '"X"', '"linux"', '"Linux"', '"3"', '"-0.5"', '"a, b"', '"b,A"'),
    *('"1, 2.5"', '"3 4"', '"1,x"', '"\\t"', '","', '" , "', '"a,,b"', '"x1"', '"nan"', '"true"'),
    *('"a;b"', '"a\\nb"', '"1e3"', '"0x10"', '" 7 "', '"-inf"'),
)
WORDS = ("true", "false", "undefined", "error")
PATTERNS = ('"^a"', '"x*"', '"L.N"', '"[0-9]+$"', '"^$"', '"(a|b),"', '"a\\\\b"', '"."', '"\\\\d"')
OPTIONS = ('"i"', '""', '"ims"', '"x"')
COMPARISONS = ('"<"', '"<="', '"=="', '"!="', '">="', '">"', '"is"', '"isnt"', '"=?="', '"q"')
SEPARATORS = ('","', '" ,"', '";"', '""', '" "', '"b"')

_BINARY = (
    *("+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "=?=", "=!=", "is", "isnt"),
    *("&&", "||", "&&", "||", "&", "|", "^", "<<", ">>", ">>>"),
)
_SIGNS = ("-", "!", "+", "~")
_PARAMETERS = {
    "regexp": (PATTERNS, STRINGS, OPTIONS),
    "regexpmember": (PATTERNS, None, OPTIONS),
    "stringlist_regexpmember": (PATTERNS, STRINGS, SEPARATORS, OPTIONS),
    "anycompare": (COMPARISONS, None, NUMBERS),
    "allcompare": (COMPARISONS, None, NUMBERS),
    "split": (STRINGS, SEPARATORS),
    "stringlistmember": (STRINGS, STRINGS, SEPARATORS),
    "stringlistimember": (STRINGS, STRINGS, SEPARATORS),
    "stringlistsize": (STRINGS, SEPARATORS),
    "stringlistsum": (STRINGS, SEPARATORS),
    "stringlistavg": (STRINGS, SEPARATORS),
    "stringlistmin": (STRINGS, SEPARATORS),
    "stringlistmax": (STRINGS, SEPARATORS),
    "stringlistsintersect": (STRINGS, STRINGS, SEPARATORS),
    "stringlistsubsetmatch": (STRINGS, STRINGS, SEPARATORS),
    "stringlistisubsetmatch": (STRINGS, STRINGS, SEPARATORS),
    "substr": (STRINGS, NUMBERS, NUMBERS),
}
"""Arguments that functions expect, by place; None: a list. They are mostly given these."""

_FUNCTIONS = tuple(SIGNATURES)


@dataclass(frozen=True)
class World:
    """
    Expressions of one ad, to be held against some other ads; all as text.

    Parameters
    ----------
    my
        The ad that the expressions belong to.
    targets
        The other ads.
    expressions
        Each to be evaluated against each of the other ads.
    """

    my: str
    targets: tuple[str, ...]
    expressions: tuple[str, ...]


EXPRESSIONS = 25
"""Expressions of a world; reading ads takes long enough to share them."""


def world(seed: int) -> World:
    """Return a random world of four other ads, one of them of constants alone."""
    generator = Generator(seed)
    return World(
        my=generator.ad(),
        targets=(*(generator.ad() for _ in range(3)), generator.plain_ad()),
        expressions=tuple(generator.expression() for _ in range(EXPRESSIONS)),
    )


def smallest(text: str, differs: Callable[[str], object]) -> str:
    """Return the smallest part of an expression that still differs, for a message."""
    for part in parse(text).root.parts:
        inner = str(Expression(part))
        if differs(inner):
            return smallest(inner, differs)
    return text


class Generator:
    """
    Writes random text of the language.

    Parameters
    ----------
    seed
        Equal seeds give equal text.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def expression(self, depth: int = 3) -> str:
        """Return any expression, nested at most so many levels deep."""
        pick = self._rng.random()
        if depth == 0 or pick < 0.12:
            return self._atom()
        inner = depth - 1
        if pick < 0.35:
            one, other = self.expression(inner), self.expression(inner)
            return f"({one} {self._rng.choice(_BINARY)} {other})"
        if pick < 0.42:
            return f"{self._rng.choice(_SIGNS)}({self.expression(inner)})"
        if pick < 0.48:
            parts = [self.expression(inner) for _ in range(3)]
            return "({} ? {} : {})".format(*parts)
        if pick < 0.53:
            # A number with its sign, or what needs no sign, may stand bare behind "?:".
            return f"({self.expression(inner)} ?: {self._atom()})"
        if pick < 0.57:
            items = ", ".join(self.expression(inner) for _ in range(self._rng.randint(0, 3)))
            return f"{{{items}}}"
        if pick < 0.60:
            return f"({self.expression(inner)})[{self.expression(inner)}]"
        if pick < 0.62:
            return f"{self._selectable(inner)}.{self._rng.choice(NAMES)}"
        if pick < 0.64:
            return self.ad(inner)
        return self._call(inner)

    def ad(self, depth: int = 2) -> str:
        """Return an ad of values and, where the depth is above 0, of expressions."""
        names = self._rng.sample(NAMES[:-1], self._rng.randint(0, 4))
        return self._ad(names, depth, lambda: self.expression(self._rng.randint(0, depth)))

    def plain_ad(self) -> str:
        """Return an ad of constants and lists of constants."""
        names = self._rng.sample(NAMES[:-1], self._rng.randint(0, 5))
        return self._ad(names, 0, lambda: self._rng.choice((self._literal, self._list))())

    def _ad(self, names: list[str], depth: int, value: Callable[[], str]) -> str:
        fields = [f"{name} = {value()}" for name in names if name != INNER]
        if INNER in names and depth:
            fields.append(f"{INNER} = {self.ad(depth - 1)}")
        return "[ " + "; ".join(fields) + " ]"

    def _selectable(self, depth: int) -> str:
        # HTCondor's library crashes where an attribute is selected from what split() gives.
        ads = ", ".join(self.ad(depth) for _ in range(self._rng.randint(1, 2)))
        return self._rng.choice((INNER, f"{{{ads}}}", self.ad(depth), f"TARGET.{INNER}"))

    def _atom(self) -> str:
        return self._rng.choice((self._literal, self._literal, self._name, self._list))()

    def _literal(self) -> str:
        return self._rng.choice(self._rng.choice((NUMBERS, STRINGS, WORDS)))

    def _list(self) -> str:
        return "{" + ", ".join(self._literal() for _ in range(self._rng.randint(0, 3))) + "}"

    def _name(self) -> str:
        name = self._rng.choice(NAMES)
        scope = self._rng.choice(("", "", "", "MY.", "TARGET.", "other.", "self."))
        return scope + self._rng.choice((name, name.upper()))

    def _call(self, depth: int) -> str:
        function = self._rng.choice(_FUNCTIONS)
        fewest, most = SIGNATURES[function]
        given = self._rng.randint(fewest, fewest + 3 if most is None else most)
        expected = _PARAMETERS.get(function, ())
        arguments = []
        for place in range(given):
            usual = expected[place] if place < len(expected) else ()
            if usual == () or self._rng.random() < 0.3:
                arguments.append(self.expression(depth))
            else:
                arguments.append(self._list() if usual is None else self._rng.choice(usual))
        return f"{function}({', '.join(arguments)})"
