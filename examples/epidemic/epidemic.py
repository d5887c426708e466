"""
A stochastic SEIR epidemic in three age groups, many outbreaks at once.

Each person is susceptible, exposed (infected, not yet infectious), infectious
or recovered. In one step of ``STEP`` days each susceptible of group ``i``
escapes infection with probability ``exp(-force_i STEP)``, each exposed becomes
infectious and each infectious recovers with a fixed probability, so the number
who move is binomial: the chain-binomial model, here in the notation of [1]_.

Two cases arrive in a closed population, part of which was vaccinated before.
A vaccine works fully or not at all (with probability ``EFFICACY``); whoever it
protects starts as recovered.

Use::

    python3 epidemic.py --r0 2.5 --vaccinated 0.4 --seed 1 --out result.json

References
----------
.. [1] Keeling, Rohani (2008). Modeling Infectious Diseases in Humans and
   Animals, chapters 3 and 6.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

PEOPLE: IntArray = np.array([10_000, 30_000, 10_000])
"""Children (to 17), adults, elderly (from 65)."""

# Contacts a day of one person (row) with people of each group (column), made
# for this example in the shape of contact surveys: children meet children,
# everybody meets adults. Both sides of a contact count it, so that
# CONTACTS[i, j] * PEOPLE[i] == CONTACTS[j, i] * PEOPLE[j].
CONTACTS: FloatArray = np.array(
    [
        [9.0, 6.0, 0.8],
        [2.0, 9.0, 1.0],
        [0.8, 3.0, 3.0],
    ]
)

LATENT = 3.0
"""Mean days from infection to infectiousness."""
INFECTIOUS = 5.0
"""Mean days of infectiousness."""
STEP = 0.5
"""Days in one step."""
EFFICACY = 0.9
"""Probability that a vaccination protects."""
ARRIVING: IntArray = np.array([0, 2, 0])
"""Infectious people at the start, by group."""
MAJOR = 0.02
"""Share of the population above which an outbreak counts as major."""

BECOME_INFECTIOUS = 1.0 - np.exp(-STEP / LATENT)
RECOVER = 1.0 - np.exp(-STEP / INFECTIOUS)


def infections_per_case(r0: float) -> FloatArray:
    """
    Next-generation matrix of the population before vaccination.

    Parameters
    ----------
    r0
        Its largest eigenvalue, the basic reproduction number.

    Returns
    -------
    ndarray
        Mean number that one infectious person of group ``j`` (column) infects
        in group ``i`` (row) when all are susceptible, shape ``(3, 3)``.
    """
    shape = CONTACTS.T
    largest = float(np.abs(np.linalg.eigvals(shape)).max())
    return r0 / largest * shape


@dataclass(frozen=True, slots=True)
class Outbreaks:
    """
    What became of some outbreaks.

    Parameters
    ----------
    infected
        People infected in all, the arriving ones included, by outbreak and
        group, shape ``(n, 3)``.
    peak
        Most people infectious at one time, shape ``(n,)``.
    peak_day
        Day when that was first so, shape ``(n,)``.
    end_day
        Day when the last case had recovered, shape ``(n,)``.
    """

    infected: IntArray
    peak: IntArray
    peak_day: FloatArray
    end_day: FloatArray

    @property
    def attack_rate(self) -> FloatArray:
        """Share of the population that was infected, shape ``(n,)``."""
        share: FloatArray = self.infected.sum(axis=1) / PEOPLE.sum()
        return share

    @property
    def major(self) -> NDArray[np.bool_]:
        """Which outbreaks took off, shape ``(n,)``."""
        took_off: NDArray[np.bool_] = self.attack_rate > MAJOR
        return took_off


def spread(r0: float, vaccinated: float, outbreaks: int, random: np.random.Generator) -> Outbreaks:
    """
    Runs independent outbreaks until nobody carries the disease.

    Parameters
    ----------
    r0
        Basic reproduction number, before vaccination.
    vaccinated
        Share vaccinated in every group, between 0 and 1.
    outbreaks
        How many.
    random
        Source of all chance.
    """
    # An infectious period is geometric with mean STEP / RECOVER days, so this
    # rate gives `infections_per_case` exactly, whatever the step.
    rate = infections_per_case(r0).T * RECOVER / STEP / PEOPLE
    immune = random.binomial(PEOPLE, vaccinated * EFFICACY, size=(outbreaks, len(PEOPLE)))
    susceptible = np.maximum(PEOPLE - ARRIVING - immune, 0)
    started_with = susceptible.copy()
    exposed = np.zeros_like(susceptible)
    infectious = np.tile(ARRIVING, (outbreaks, 1))

    peak = infectious.sum(axis=1)
    peak_step = np.zeros(outbreaks)
    end_step = np.zeros(outbreaks)
    running = np.arange(outbreaks)
    step = 0
    while len(running):
        step += 1
        escape = np.exp(-STEP * infectious[running] @ rate)
        caught = random.binomial(susceptible[running], 1.0 - escape)
        started = random.binomial(exposed[running], BECOME_INFECTIOUS)
        recovered = random.binomial(infectious[running], RECOVER)
        susceptible[running] -= caught
        exposed[running] += caught - started
        infectious[running] += started - recovered

        now = infectious[running].sum(axis=1)
        higher = now > peak[running]
        peak[running[higher]] = now[higher]
        peak_step[running[higher]] = step
        over = (now == 0) & (exposed[running].sum(axis=1) == 0)
        end_step[running[over]] = step
        running = running[~over]

    return Outbreaks(
        infected=started_with - susceptible + ARRIVING,
        peak=peak,
        peak_day=peak_step * STEP,
        end_day=end_step * STEP,
    )


class Result(TypedDict):
    """
    What one job keeps.

    The means are over its major outbreaks, and None when there was none.
    """

    r0: float
    vaccinated: float
    seed: int
    outbreaks: int
    died_out: int
    attack_rate: float | None
    attack_rate_children: float | None
    attack_rate_adults: float | None
    attack_rate_elderly: float | None
    peak_infectious: float | None
    peak_day: float | None
    last_day: float | None


def one_job(r0: float, vaccinated: float, seed: int, outbreaks: int) -> Result:
    """
    One job of the sweep: ``outbreaks`` outbreaks and what to keep of them.
    """
    # The parameters are part of the seed, so no two jobs share their chance.
    point = [seed, round(r0 * 1000), round(vaccinated * 1000)]
    found = spread(r0, vaccinated, outbreaks, np.random.default_rng(point))
    major = found.major

    def mean(values: IntArray | FloatArray) -> float | None:
        return round(float(values[major].mean()), 6) if major.any() else None

    children, adults, elderly = (found.infected / PEOPLE).T
    return Result(
        r0=r0,
        vaccinated=vaccinated,
        seed=seed,
        outbreaks=outbreaks,
        died_out=int(outbreaks - major.sum()),
        attack_rate=mean(found.attack_rate),
        attack_rate_children=mean(children),
        attack_rate_adults=mean(adults),
        attack_rate_elderly=mean(elderly),
        peak_infectious=mean(found.peak),
        peak_day=mean(found.peak_day),
        last_day=mean(found.end_day),
    )


def share(text: str) -> float:
    """A number between 0 and 1, for argparse."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1, got {text}")
    return value


def main() -> None:
    """Reads the command line and writes one JSON file."""
    parser = argparse.ArgumentParser(description="Stochastic SEIR epidemic in three age groups")
    parser.add_argument("--r0", type=float, required=True, help="basic reproduction number")
    parser.add_argument("--vaccinated", type=share, required=True, help="share vaccinated")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--outbreaks", type=int, default=40, help="how many (default 40)")
    parser.add_argument("--out", type=Path, default=Path("result.json"))
    given = parser.parse_args()

    result = one_job(given.r0, given.vaccinated, given.seed, given.outbreaks)
    given.out.write_text(json.dumps(result) + "\n")
    attack = result["attack_rate"]
    print(
        f"R0 {given.r0:g}, {given.vaccinated:.0%} vaccinated: "
        f"{result['died_out']} of {given.outbreaks} outbreaks died out, "
        + ("none was major" if attack is None else f"the others reached {attack:.1%}")
    )


if __name__ == "__main__":
    main()
