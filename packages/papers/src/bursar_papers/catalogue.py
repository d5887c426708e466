"""The experiments there are."""

from bursar.model.errors import InputError, spelling_hint
from bursar_papers import escience06, hpdc07, nimrodg, nimrodg_own
from bursar_papers.datagrid import datagrid_experiments
from bursar_papers.documenting import LIVE
from bursar_papers.drp import drp_experiments
from bursar_papers.experiment import Experiment
from bursar_papers.market import market_experiments

TITLES = {
    "datagrid": "Cavalieri, Monforte, Scibilia 2003: where jobs go, by the files they read",
    "drp": "Raicu, Dumitrescu, Foster 2006: acquiring processors, and running tasks on them",
    "escience06": "Singh, Kesselman, Deelman, e-Science 2006: total cost by GA and Min-Min",
    "hpdc07": "Singh, Kesselman, Deelman, HPDC 2007: provisioned against best effort",
    "market": "the market: protocols and pricing policies among competing users",
    "nimrodg": "Buyya, Giddy, Abramson 2000: deadline and budget strategies",
}
EXPERIMENTS: tuple[Experiment, ...] = (
    *datagrid_experiments.EXPERIMENTS,
    *drp_experiments.EXPERIMENTS,
    *escience06.EXPERIMENTS,
    *hpdc07.EXPERIMENTS,
    *market_experiments.EXPERIMENTS,
    *nimrodg.EXPERIMENTS,
    nimrodg_own.EXPERIMENT,
)


def figures_of(paper: str) -> list[str]:
    """Return the names of a paper's figures, live ones included, in their order."""
    return [experiment.figure for experiment in EXPERIMENTS if experiment.paper == paper]


def find(paper: str, figure: str | None, *, live: bool = False) -> list[Experiment]:
    """
    Return the experiments of a paper, or the one of a figure.

    Parameters
    ----------
    live
        Those that run real tasks, in place of the others. What there is only live needs no such
        word when it is named.

    Raises
    ------
    InputError
        When there is none.
    """
    of_paper = [e for e in EXPERIMENTS if e.paper == paper]
    if not of_paper:
        raise InputError(
            f'unknown paper "{paper}", expected one of {", ".join(TITLES)}',
            hint=spelling_hint(paper, TITLES),
        )
    of_kind = [e for e in of_paper if e.live is live]
    if not of_kind:
        raise InputError(f"nothing of {paper} runs live", where="--live")
    if figure is None:
        return of_kind
    only_live = [e for e in of_paper if e.live and not e.figure.endswith(LIVE)]
    by_name = {e.figure.removesuffix(LIVE): e for e in (*only_live, *of_kind)}
    if figure not in by_name:
        raise InputError(
            f'{paper} has no figure "{figure}" here, expected one of {", ".join(by_name)}',
            hint=spelling_hint(figure, by_name),
            where="--figure",
        )
    return [by_name[figure]]
