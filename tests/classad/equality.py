"""When two implementations of the language say the same."""

import math
from typing import Any


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are of one kind and equal, the sign of zero included."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if type(one) is float and type(other) is float:
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and bool(one == other)
