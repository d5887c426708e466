"""
What differs from one run to the next is replaced by stable words.

In every run the dates on which its folder was made, the paths of this machine and numbers of
processes differ. In a live run durations, what tasks used, and the money that was paid for
durations differ, too; a simulated run keeps them, to the micro-unit. A zero and a null are never
replaced, because no clock makes them: "nothing was held" stays a statement of the contract. Of
other numbers nine digits are kept, so that a processor's last bit is no difference.
"""

import re
from collections.abc import Mapping
from typing import Any

DATES = frozenset({"created", "finished"})
"""Keys of moments by this machine's calendar, in simulated runs, too."""

DURATIONS = frozenset(
    [
        "start",
        "end",
        "runtime_s",
        "makespan_s",
        "seconds",
        "processor_seconds",
        "billed_cpu_s",
        "recorded_cpu_s",
        "asked_s",
        "began_s",
        "ended_s",
        "wait_s",
        "acquired_cpu_s",
        "used_cpu_s",
        "idle_cpu_s",
        "difference_cpu_s",
    ]
)
"""Keys of what a clock measured."""

MONEY = frozenset(
    [
        "cost",
        "held",
        "total",
        "total_micros",
        "granted_micros",
        "amount_micros",
        "repeated_micros",
        "tasks_micros",
        "remainder_micros",
    ]
)
"""Keys of amounts that follow from durations."""

USE = frozenset({"user_s", "system_s", "max_rss"})
"""Keys of what the operating system measured; a short program may well have used nothing."""

FORECAST = "forecast"
"""Key of what is forecast while a run goes on: there is nothing where it ends soon."""

_TEXTS = (
    (re.compile(r"\b[0-9a-f]{32,}\b"), "<hash>"),
    (re.compile(r"\bprocess \d+"), "process <pid>"),
    (re.compile(r"\b127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
)


def normalised(value: Any, *, live: bool, words: Mapping[str, str]) -> Any:
    """
    Return a JSON document with stable words in place of what is volatile.

    Parameters
    ----------
    value
        The document.
    live
        Whether a clock measured its durations; else they are exact, and so is the money.
    words
        Words for texts of this machine, such as the path of the test's folder.
    """
    if isinstance(value, Mapping):
        return {
            key: _word(key)
            if _is_volatile(key, inner, live)
            else normalised(inner, live=live, words=words)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [normalised(inner, live=live, words=words) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return _stable_text(value, words) if isinstance(value, str) else value


def _is_volatile(key: str, value: Any, live: bool) -> bool:
    if live and key == FORECAST:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key in DATES or (live and key in USE):
        return True
    return live and value != 0 and key in DURATIONS | MONEY


def _word(key: str) -> str:
    if key == FORECAST:
        return "<forecast>"
    if key in DATES:
        return "<date>"
    return "<use>" if key in USE else "<money>" if key in MONEY else "<seconds>"


def _stable_text(text: str, words: Mapping[str, str]) -> str:
    for found in sorted(words, key=len, reverse=True):
        text = text.replace(found, words[found])
    for pattern, word in _TEXTS:
        text = pattern.sub(word, text)
    return text
