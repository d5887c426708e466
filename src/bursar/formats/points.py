"""Which points a set of tasks runs over."""

from pathlib import Path

from bursar.formats.axes import read_sweep
from bursar.formats.sweep import ONE_POINT, Sweep
from bursar.formats.task_set import CompiledTaskSet
from bursar.formats.toml_reading import joined
from bursar.model.errors import InputError, spelling_hint


def sweep_of(compiled: CompiledTaskSet, sweep: Sweep | None, root: Path) -> Sweep:
    """
    The set's own sweep; else the part of the campaign's that ``over`` names;
    else the campaign's if the set mentions any of its parameters; else one point.

    Raises
    ------
    InputError
        At ``parameters`` or ``over``.
    """
    source = compiled.source
    if source.table.parameters is not None:
        return read_sweep(source.table.parameters, source.at("parameters"), root)
    if source.table.over is not None:
        return _part(source.table.over, sweep, source.at("over"))
    if sweep is None:
        return ONE_POINT
    mentions = compiled.mentioned() & set(sweep.parameters)
    return sweep if source.swept or mentions else ONE_POINT


def _part(wanted: list[str], sweep: Sweep | None, place: str) -> Sweep:
    if sweep is None:
        raise InputError("needs [parameters]", where=place)
    for i, name in enumerate(wanted):
        if name not in sweep.parameters:
            raise InputError(
                f'unknown parameter "{name}", expected {", ".join(sweep.parameters)}',
                where=joined(place, i),
                hint=spelling_hint(name, sweep.parameters),
            )
        if name in wanted[:i]:
            raise InputError(f'"{name}" stands there twice', where=joined(place, i))
    return sweep.over([name for name in sweep.parameters if name in wanted])
