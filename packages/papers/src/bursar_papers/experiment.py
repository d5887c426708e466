"""
What an experiment is: cells, a pure function from a cell to rows, and what they show.

A *cell* is one combination of the factors with its seed. Measuring it depends on
nothing but the cell and the data folder, so cells run in any order, on any number
of processes, and are kept from one call to the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bursar.model.errors import InputError
from bursar_papers.equivalence import Comparison, Judgement, Uncounted, combine_judgements
from bursar_papers.summary import Row as Row

if TYPE_CHECKING:
    import altair

Effort = Literal["quick", "normal", "full"]
EFFORTS: tuple[Effort, ...] = ("quick", "normal", "full")

Cell = Mapping[str, Any]
"""Factors by name: numbers, strings, booleans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFinding:
    """
    One figure or statement of the paper beside ours.

    Parameters
    ----------
    what
        What was measured, with its unit.
    paper
        What the paper states; empty where it states nothing.
    ours
        What came out; spreads are half the 95 % interval.
    comparisons
        All that have to agree; empty where there is nothing to hold ours against.
    own
        Whether the statement is a claim of ours rather than of the paper.
    uncounted
        Why the finding does not count, if it does not; there is no judgement then.
    remark
        What differs and why, or what the figure means; may be empty.
    """

    what: str
    paper: str
    ours: str
    comparisons: tuple[Comparison, ...] = ()
    own: bool = False
    uncounted: Uncounted | None = None
    remark: str = ""

    @property
    def verdict(self) -> Judgement | Uncounted | None:
        """The rule's judgement of all comparisons; None where there are none."""
        if self.uncounted is not None:
            return self.uncounted
        if not self.comparisons:
            return None
        return combine_judgements(each.judgement for each in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "what": self.what,
            "paper": self.paper,
            "own": self.own,
            "ours": self.ours,
            "verdict": self.verdict,
            "comparisons": [each.to_dict() for each in self.comparisons],
            "remark": self.remark,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """
    One table or figure of a paper.

    Parameters
    ----------
    paper, figure
        Short names: ``hpdc07`` and ``5``.
    title
        What it shows.
    about
        Inputs and factors, in a sentence or two.
    cells
        Of an effort, in their order.
    measure
        From a cell and the data folder to rows; a function of a module, so that
        processes can be told of it.
    findings
        What the rows show.
    charts
        Charts of the rows, by a short name.
    live
        Whether it runs real tasks, in real time; it is then left out unless asked for.
    """

    paper: str
    figure: str
    title: str
    about: str
    cells: Callable[[Effort], Sequence[Cell]]
    measure: Callable[[Cell, Path], list[Row]]
    findings: Callable[[Sequence[Row]], list[PaperFinding]]
    charts: "Callable[[Sequence[Row]], dict[str, altair.TopLevelMixin]]"
    live: bool = False

    @property
    def name(self) -> str:
        """Paper and figure."""
        return f"{self.paper}, {self.figure_title}"

    @property
    def figure_title(self) -> str:
        """``figure 5``, or what stands for a number."""
        if self.figure.isdigit():
            return f"figure {self.figure}"
        return self.figure.replace("-", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """
    An experiment that was run.

    Parameters
    ----------
    experiment, effort
        What, and how much of it.
    rows
        Of all cells, in their order.
    cells, cached
        How many there were, and how many of them were kept from before.
    seeds
        How many different ones they had.
    seconds
        Of processors spent on the cells, those of kept ones included.
    """

    experiment: Experiment
    effort: Effort
    rows: list[Row]
    cells: int
    cached: int
    seconds: float
    seeds: int = 1
    findings: list[PaperFinding] = field(default_factory=list)


def data_file(folder: Path, *parts: str) -> Path:
    """
    A file of the data folder.

    Raises
    ------
    InputError
        When it is not there.
    """
    path = folder.joinpath(*parts)
    if not path.is_file():
        raise InputError(
            "is not there",
            where=str(path),
            hint="give the folder that holds swf/ with --data, or in BURSAR_DATA; "
            "the logs are in the Parallel Workloads Archive",
        )
    return path
