"""Parameters of commands whose values are converted without loading Pydantic where possible."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from typer.core import TyperArgument, TyperOption

if TYPE_CHECKING:
    from typer._click import Context

# Typer converts each value of a command line by Pydantic, which takes as long to load as NumPy.


class LateConversion:
    """Converts a parameter's values, by Pydantic only where Python's own types do not suffice."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def coerce(self, value: Any, *, param: Any, ctx: "Context") -> Any:
        """Return the value as the type that the command declares; errors as Typer's."""
        if value is None and param.nargs == 1 and not param.multiple:
            return None
        wanted, rules = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if not isinstance(value, str):
            # Defaults have the type that the command declares.
            if not isinstance(value, list | tuple) and value == param.default:
                return value
        elif rules.parser is None:
            if wanted is str or (get_origin(wanted) is Literal and value in get_args(wanted)):
                return value
            # Whether a file has to be there and what it has to be is left to Typer.
            if wanted is int and value.isascii() and value.isdecimal():
                number = int(value)
                if (rules.min is None or rules.min <= number) and (
                    rules.max is None or number <= rules.max
                ):
                    return number
            if wanted is Path and not (rules.exists or rules.resolve_path) and _is_usable(value):
                return Path(value)
        return self._usual().coerce(value, param=param, ctx=ctx)


def _is_usable(path: str) -> bool:
    """Whether a path can be read, or nothing is there yet."""
    return os.access(path, os.R_OK) or not os.path.lexists(path)


class LateArgument(TyperArgument):
    """An argument that is converted by :class:`LateConversion`."""

    def display_type_rich(self, ctx: "Context") -> str | None:
        """Return the choices in the help; None where the name says enough."""
        shown = super().display_type_rich(ctx)
        return None if shown in ("<str>", "<path>", "<list[str]>") else shown

    def get_runtime_param(self) -> Any:
        """Return what converts the values."""
        return LateConversion(super().get_runtime_param)


class LateOption(TyperOption):
    """An option that is converted by :class:`LateConversion`."""

    def display_type_rich(self, ctx: "Context") -> str | None:
        """Return the placeholder of the value in the help; a flag has none."""
        return None if self.is_flag else super().display_type_rich(ctx)

    def get_runtime_param(self) -> Any:
        """Return what converts the values."""
        return LateConversion(super().get_runtime_param)


LATE: dict[type, type] = {TyperArgument: LateArgument, TyperOption: LateOption}


def convert_late(params: Iterable[Any]) -> None:
    """Have the parameters of a command converted late."""
    for param in params:
        if type(param) in LATE:
            param.__class__ = LATE[type(param)]  # Typer has no setting for the class of parameters
