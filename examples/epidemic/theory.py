"""
What theory expects of the model in ``epidemic.py``, for a large population.

Both results hold exactly for the model's own steps, not only in the limit of
short ones, because the infectious period is taken as the model has it.
"""

import numpy as np
from epidemic import ARRIVING, EFFICACY, PEOPLE, RECOVER, FloatArray, infections_per_case


def final_size(r0: float, vaccinated: float) -> FloatArray:
    """
    Share of each group that a major outbreak infects.

    The share that escapes is ``exp(-force)``, where a group's force adds up
    over everybody who was infected. A positive root is found from above, where
    the iteration falls monotonically on the largest one.

    Parameters
    ----------
    r0
        Basic reproduction number, before vaccination.
    vaccinated
        Share vaccinated in every group.

    Returns
    -------
    ndarray
        Shape ``(3,)``; all but the arriving cases are 0 below the threshold.

    References
    ----------
    .. [1] Kermack, McKendrick (1927). Proc. R. Soc. A 115: 700-721.
    .. [2] Diekmann, Heesterbeek (2000). Mathematical Epidemiology of
       Infectious Diseases, section 6.
    """
    arriving = ARRIVING / PEOPLE
    susceptible = (1.0 - arriving) * (1.0 - vaccinated * EFFICACY)
    # Infections in group i by all of group j, for each person of i.
    force = infections_per_case(r0) * PEOPLE / PEOPLE[:, None]
    infected = susceptible + arriving
    for _ in range(10_000):
        before = infected
        infected = arriving + susceptible * (1.0 - np.exp(-force @ before))
        if np.abs(infected - before).max() < 1e-12:
            break
    return np.asarray(infected, dtype=np.float64)


def extinction_probability(r0: float, vaccinated: float) -> float:
    """
    Probability that the arriving cases start no major outbreak.

    While few are infected, the outbreak is a branching process: one case
    infects a Poisson number in each step of its geometric infectious period.
    The probability that its descendants die out is the least fixed point of
    the generating function, one per group, found from below. With one group
    and short steps this is ``1 / R0`` for each arriving case.

    References
    ----------
    .. [1] Keeling, Rohani (2008), section 6.3.3.
    .. [2] Athreya, Ney (1972). Branching Processes, chapter V.
    """
    offspring = infections_per_case(r0) * (1.0 - vaccinated * EFFICACY)
    dies_out = np.zeros(len(PEOPLE))
    for _ in range(100_000):
        before = dies_out
        in_one_step = np.exp(-RECOVER * offspring.T @ (1.0 - before))
        dies_out = RECOVER * in_one_step / (1.0 - (1.0 - RECOVER) * in_one_step)
        if np.abs(dies_out - before).max() < 1e-12:
            break
    return float(np.prod(dies_out**ARRIVING))
