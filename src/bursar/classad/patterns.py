"""
Regular expressions that take linear time, whatever the pattern and the text.

Patterns come from users and from sites; one such as ``(a+)+$`` keeps a backtracking
matcher, Python's and Perl's, busy for ever. Here a pattern becomes a small program of
characters, forks and assertions, and all its threads go through the text together [1]_;
the sets of threads that were met are remembered. Hence nothing that needs backtracking:
no back references, no looking ahead or behind.

References
----------
.. [1] Thompson (1968). Regular expression search algorithm. CACM 11(6): 419-422.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

LONGEST_PROGRAM = 2000
"""Instructions; ``a{9}`` takes nine of them."""

DEEPEST = 50
"""Groups within groups."""

_MOST_STATES = 2000

Test = Callable[[str], bool]

_CLASSES: dict[str, Test] = {
    "d": lambda c: "0" <= c <= "9",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "s": lambda c: c in " \t\n\r\f\v",
}
_POSIX: dict[str, Test] = {
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "digit": _CLASSES["d"],
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "upper": lambda c: "A" <= c <= "Z",
    "lower": lambda c: "a" <= c <= "z",
    "space": _CLASSES["s"],
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_REPEAT = re.compile(r"\{(\d{1,4})(,(\d{1,4})?)?\}", re.ASCII)

_END = ""
_LAST_NEWLINE = "\n$"
"""A newline that ends the text: ``$`` also stands before it."""


class _NoPatternError(Exception):
    """The pattern is none, or none that is supported."""


# ---- the program: each instruction with where it goes on ----


@dataclass(frozen=True, slots=True)
class _Character:
    test: Test


@dataclass(frozen=True, slots=True)
class _Fork:
    ways: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Assert:
    """Holds between two characters; each is empty where the text ends."""

    holds: Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class _AcceptState:
    pass


_Instruction = _Character | _Fork | _Assert | _AcceptState


@dataclass(slots=True, eq=False)
class _MatcherState:
    """Threads before a character, the one before it, and where each next one leads."""

    threads: frozenset[int]
    before: str
    next: dict[str, "_MatcherState | None"] = field(default_factory=dict)


class Pattern:
    """
    A compiled pattern.

    Parameters
    ----------
    program
        Instructions; one goes on to the next unless it forks.
    """

    def __init__(self, program: list[_Instruction]) -> None:
        self._program = program
        self._states: dict[tuple[frozenset[int], str], _MatcherState] = {}
        self._start = self._state(frozenset(), "")

    def is_found(self, text: str) -> bool:
        """Whether it matches anywhere in the text."""
        state = self._start
        for symbol in (*text[:-1], _LAST_NEWLINE if text[-1:] == "\n" else text[-1:], _END):
            try:
                leads = state.next[symbol]
            except KeyError:
                leads = self._step(state, symbol)
            if leads is None:
                return True
            state = leads
        return False

    def _state(self, threads: frozenset[int], before: str) -> _MatcherState:
        # What assertions ask of the character before: none, a newline, a word, or another.
        kind = before if before in ("", "\n") else "w" if _CLASSES["w"](before) else " "
        found = self._states.get((threads, kind))
        if found is None:
            if len(self._states) >= _MOST_STATES:
                self._states.clear()
            found = self._states[threads, kind] = _MatcherState(threads, kind)
        return found

    def _step(self, state: _MatcherState, symbol: str) -> _MatcherState | None:
        """Where a symbol leads; None when the pattern has been found before it."""
        character = symbol[:1]
        after: set[int] = set()
        seen: set[int] = set()
        waiting = [*state.threads, 0]  # a match may begin at every character
        found = False
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            match self._program[at]:
                case _Character(test):
                    if character and test(character):
                        after.add(at + 1)
                case _Fork(ways):
                    waiting += ways
                case _Assert(holds):
                    if holds(state.before, symbol):
                        waiting.append(at + 1)
                case _AcceptState():
                    found = True
        leads = None if found else self._state(frozenset(after), character)
        if len(state.next) < _MOST_STATES:
            state.next[symbol] = leads
        return leads


def compile_pattern(pattern: str, options: str) -> Pattern | None:
    """
    The pattern, or None when it is none or is not supported.

    Parameters
    ----------
    pattern
        As in Perl, without back references and looking around.
    options
        Letters of ``imsx``, as in :func:`bursar.classad.text.matched`.
    """
    try:
        return Pattern(_Compiler(pattern, options).program())
    except _NoPatternError:
        return None


def _is_word(symbol: str) -> bool:
    return symbol != "" and _CLASSES["w"](symbol[:1])


class _Compiler:
    """Reads a pattern once from left to right and writes its program."""

    def __init__(self, pattern: str, options: str) -> None:
        inline = re.match(r"\(\?([imsx]+)\)", pattern)
        self._options = {*options, *(inline[1] if inline else "")}
        self._text = pattern[inline.end() :] if inline else pattern
        self._at = 0

    def program(self) -> list[_Instruction]:
        body = self._alternatives(0)
        if self._at < len(self._text):
            raise _NoPatternError  # a ")" too many
        return [*body, _AcceptState()]

    def _peek(self) -> str:
        if "x" in self._options:
            space = re.compile(r"(?:\s|#[^\n]*)+").match(self._text, self._at)
            self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._text[self._at : self._at + 1]
        self._at += 1
        return character

    def _alternatives(self, depth: int) -> list[_Instruction]:
        """Instructions go from 0 on; whoever joins them moves them."""
        if depth > DEEPEST:
            raise _NoPatternError
        ways = [self._sequence(depth)]
        while self._peek() == "|":
            self._take()
            ways.append(self._sequence(depth))
        body = ways.pop()
        for way in reversed(ways):
            # fork to this way or the rest; after this way, past the rest.
            past = len(way) + 2
            body = _joined([_Fork((1, past))], way, [_Fork((len(body) + 1,))], body)
        return body

    def _sequence(self, depth: int) -> list[_Instruction]:
        body: list[_Instruction] = []
        while self._peek() not in ("", "|", ")"):
            body = _joined(body, self._repeated(depth))
        return body

    def _repeated(self, depth: int) -> list[_Instruction]:
        item = self._item(depth)
        sign = self._peek()
        counted = _REPEAT.match(self._text, self._at) if sign == "{" else None
        if counted:
            self._at = counted.end()
            least = int(counted[1])
            most = least if counted[2] is None else int(counted[3]) if counted[3] else None
        elif sign and sign in "*+?":
            self._take()
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        else:
            return item
        if most is not None and most < least:
            raise _NoPatternError
        if self._peek() == "?":  # as few as possible: the same where only the answer counts
            self._take()
        if (self._peek() and self._peek() in "*+?") or _REPEAT.match(self._text, self._at):
            raise _NoPatternError
        return _times(item, least, most)

    def _item(self, depth: int) -> list[_Instruction]:
        character = self._take()
        if character in "*+?":
            raise _NoPatternError
        if character == "(":
            if self._text.startswith("?:", self._at):
                self._at += 2
            elif self._text.startswith("?", self._at):
                raise _NoPatternError
            body = self._alternatives(depth + 1)
            if self._take() != ")":
                raise _NoPatternError
            return body
        if character == "[":
            return [_Character(self._set())]
        if character == ".":
            everything = "s" in self._options
            return [_Character(lambda c: everything or c != "\n")]
        if character == "^":
            lines = "m" in self._options
            return [_Assert(lambda before, _: before == "" or (lines and before == "\n"))]
        if character == "$":
            ends = (_END, _LAST_NEWLINE, "\n") if "m" in self._options else (_END, _LAST_NEWLINE)
            return [_Assert(lambda _, after: after in ends)]
        if character == "\\":
            return [self._escaped()]
        return [_Character(self._one(character))]

    def _escaped(self) -> _Instruction:
        letter = self._take()
        match letter:
            case "b":
                return _Assert(lambda before, after: _is_word(before) != _is_word(after))
            case "B":
                return _Assert(lambda before, after: _is_word(before) == _is_word(after))
            case "A":
                return _Assert(lambda before, _: before == "")
            case "z":
                return _Assert(lambda _, after: after == _END)
            case "Z":
                return _Assert(lambda _, after: after in (_END, _LAST_NEWLINE))
        if letter.lower() in _CLASSES:
            return _Character(_class(letter))
        return _Character(self._one(self._plain(letter)))

    def _plain(self, letter: str) -> str:
        """The character that a backslash and a letter stand for."""
        if letter in _CONTROL:
            return _CONTROL[letter]
        if not letter or (letter.isascii() and letter.isalnum()):
            raise _NoPatternError  # a back reference, or one we do not know
        return letter

    def _one(self, character: str) -> Test:
        if "i" not in self._options or not character.isascii():
            return lambda c: c == character
        both = {character.lower(), character.upper()}
        return lambda c: c in both

    def _set(self) -> Test:
        negated = self._text.startswith("^", self._at)
        self._at += negated
        tests: list[Test] = []
        first = True
        while True:
            character = self._take()
            if character == "":
                raise _NoPatternError
            if character == "]" and not first:
                break
            first = False
            posix = re.compile(r"\[:(\^?)(\w+):\]").match(self._text, self._at - 1)
            if character == "[" and posix:
                if posix[2] not in _POSIX:
                    raise _NoPatternError
                self._at = posix.end()
                tests.append(_not(_POSIX[posix[2]]) if posix[1] else _POSIX[posix[2]])
                continue
            if character == "\\":
                letter = self._take()
                if letter and letter.lower() in _CLASSES:
                    tests.append(_class(letter))
                    continue
                character = "\b" if letter == "b" else self._plain(letter)
            tests.append(self._range(character))
        chosen = tuple(tests)
        if negated:
            return lambda c: not any(test(c) for test in chosen)
        return lambda c: any(test(c) for test in chosen)

    def _range(self, start: str) -> Test:
        rest = self._text[self._at : self._at + 2]
        if not rest.startswith("-") or rest in ("-", "-]"):
            return self._one(start)
        self._take()
        end = self._take()
        if end == "\\":
            end = self._plain(self._take())
        if end < start:
            raise _NoPatternError
        if "i" not in self._options:
            return lambda c: start <= c <= end
        return lambda c: start <= c.lower() <= end or start <= c.upper() <= end


def _class(letter: str) -> Test:
    test = _CLASSES[letter.lower()]
    return test if letter.islower() else _not(test)


def _not(test: Test) -> Test:
    return lambda c: not test(c)


def _joined(*bodies: list[_Instruction]) -> list[_Instruction]:
    """One after the other; what forks within a body is moved along with it."""
    program: list[_Instruction] = []
    for body in bodies:
        start = len(program)
        if start + len(body) > LONGEST_PROGRAM:
            raise _NoPatternError
        program += [_moved(instruction, start) for instruction in body]
    return program


def _moved(instruction: _Instruction, by: int) -> _Instruction:
    if isinstance(instruction, _Fork) and by:
        return _Fork(tuple(way + by for way in instruction.ways))
    return instruction


def _times(item: list[_Instruction], least: int, most: int | None) -> list[_Instruction]:
    if max(least, most or 0) * (len(item) + 1) > LONGEST_PROGRAM:
        raise _NoPatternError
    body: list[_Instruction] = []
    for _ in range(least):
        body = _joined(body, item)
    if most is None:
        loop = _joined([_Fork((1, len(item) + 2))], item)
        # Back to the fork, by a fork of one way.
        return _joined(body, [*loop, _Fork((0,))])
    for _ in range(most - least):
        body = _joined(body, [_Fork((1, len(item) + 1))], item)
    return body
