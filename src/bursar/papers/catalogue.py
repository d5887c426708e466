"""The experiments there are."""

from bursar.model.errors import InputError, nearest
from bursar.papers import escience06, hpdc07, nimrodg
from bursar.papers.experiment import Experiment

TITLES = {
    "escience06": "Singh, Kesselman, Deelman, e-Science 2006: total cost by GA and Min-Min",
    "hpdc07": "Singh, Kesselman, Deelman, HPDC 2007: provisioned against best effort",
    "nimrodg": "Buyya, Giddy, Abramson 2000: deadline and budget strategies",
}
EXPERIMENTS: tuple[Experiment, ...] = (
    *escience06.EXPERIMENTS,
    *hpdc07.EXPERIMENTS,
    *nimrodg.EXPERIMENTS,
)


def find(paper: str, figure: str | None) -> list[Experiment]:
    """
    Those of a paper; one of them where a figure is named.

    Raises
    ------
    InputError
        When there is none.
    """
    of_paper = [e for e in EXPERIMENTS if e.paper == paper]
    if not of_paper:
        raise InputError(
            f'unknown paper "{paper}", expected one of {", ".join(TITLES)}',
            hint=nearest(paper, TITLES),
        )
    if figure is None:
        return of_paper
    named = [e for e in of_paper if e.figure == figure]
    if not named:
        figures = [e.figure for e in of_paper]
        raise InputError(
            f'{paper} has no figure "{figure}" here, expected one of {", ".join(figures)}',
            hint=nearest(figure, figures),
            where="--figure",
        )
    return named
