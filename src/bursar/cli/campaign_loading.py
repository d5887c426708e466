"""The campaign and the sites that a command line names, loaded and checked."""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bursar.cli.campaign_options import CampaignOptions
from bursar.cli.options import parsed
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.matching import Brokering
from bursar.model.site import AUCTIONS, BuyingProtocol, SiteFacts, with_market


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCampaign:
    """
    The request that a command line makes.

    Parameters
    ----------
    campaign
        Campaign with the goal of the command line.
    sites
        Sites to carry the campaign out on.
    broker
        How jobs are to be matched to sites; None: nothing is stated.
    """

    campaign: Campaign
    sites: tuple[SiteFacts, ...]
    broker: Brokering | None


def load_asked(path: Path, options: "CampaignOptions") -> AskedCampaign:
    """
    Read the campaign and the sites that the options of a command name.

    Raises
    ------
    InputError
        Naming the file and place, or the option, that is wrong.
    """
    campaign = load_campaign(
        path,
        deadline=options.deadline,
        budget=options.budget,
        trade_off=options.trade_off,
        confidence=options.confidence,
        runtime=options.runtime,
        replay_scale=None if options.replay is None else _scale(options.replay),
        size_scale=options.size_scale,
    )
    sites = load_sites(options.sites, options.market)
    sites = with_agreement(sites, options.agreement, gives_back=options.give_back)
    broker = brokering(
        choice=options.choice,
        alpha=options.alpha,
        beta=options.beta,
        weights=options.weights,
        refresh=options.refresh,
        rank_by=options.rank_by,
        seed=options.seed,
    )
    campaign = by_factors(
        campaign,
        sites,
        options.deadline_factor,
        options.budget_factor,
        given=(options.deadline, options.budget),
    )
    if options.copies or options.buy_copies:
        buys = options.buy_copies or campaign.retry.buys_copies
        retry = replace(campaign.retry, copies=True, buys_copies=buys)
        campaign = replace(campaign, retry=retry)
    return AskedCampaign(campaign=campaign, sites=sites, broker=broker)


def _scale(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f'expected a factor for the recorded runtimes, got "{text}"',
            where="--replay",
            hint="to replay a past run, leave the CAMPAIGN out",
        ) from None


def check_probe(probe: int | None, runtime: str | None, replay: object) -> None:
    """
    Refuse ``--probe`` beside another source of runtimes.

    Raises
    ------
    InputError
        Naming the other option.
    """
    for option, value in (("--runtime", runtime), ("--replay", replay)):
        if probe is not None and value is not None:
            raise InputError(f"goes without {option}, which states the runtimes", where="--probe")


def load_campaign(
    path: Path,
    *,
    deadline: str | None,
    budget: str | None,
    trade_off: float | None,
    confidence: str | None,
    runtime: str | None,
    replay_scale: float | None,
    size_scale: float,
    snakemake: str | None = None,
) -> Campaign:
    """
    Read the campaign in a file, with the command line's options applied.

    Parameters
    ----------
    snakemake
        Arguments of ``snakemake`` for a Snakefile; None: none.

    Raises
    ------
    InputError
        Naming the file and place, or the option, that is wrong.
    """
    from bursar.cli.options import print_note
    from bursar.formats.campaign_file import read_campaign

    campaign = read_campaign(path) if snakemake is None else _snakefile_with(path, snakemake)
    for remark in campaign.remarks:
        print_note(remark)
    # The tasks stay until this process ends: the search for cycles need never look at them again.
    gc.freeze()
    if replay_scale is not None:
        campaign = _replayed(campaign, path, replay_scale, size_scale)
    elif size_scale != 1.0:
        raise InputError("goes with --replay only", where="--size-scale")
    if runtime is not None:
        campaign = _with_runtime(campaign, runtime)
    goal = with_options(
        campaign.goal,
        deadline=deadline,
        budget=budget,
        trade_off=trade_off,
        confidence=confidence,
    )
    return replace(campaign, goal=goal)


def _snakefile_with(path: Path, arguments: str) -> Campaign:
    from bursar.formats.file_text import check_readable
    from bursar.formats.job_files.snakefile import is_snakefile, read_snakefile

    if not is_snakefile(path):
        raise InputError("goes with a Snakefile only", where="--snakemake")
    check_readable(path)
    return read_snakefile(path, arguments)


def scaled_down(campaign: Campaign, sites: Sequence[SiteFacts]) -> Campaign:
    """
    Return a campaign whose jobs of Snakemake claim no more processors than the largest site has.

    Snakemake does so itself on one machine (``--cores``). Tasks of other campaigns stay as they
    are: their users stated how many they need.
    """
    from bursar.cli.options import print_note
    from bursar.formats.job_files.snakefile import is_snakefile

    most = max(site.processors for site in sites)
    wide = {task.name for task in campaign.workflow.tasks if task.processors > most}
    if not wide or campaign.source is None or not is_snakefile(campaign.source):
        return campaign
    print_note(
        f"no site has as many processors as {', '.join(sorted(wide))} claim: planned with {most}, "
        "and with the run times that are known of more"
    )
    tasks = tuple(
        replace(task, processors=min(task.processors, most)) for task in campaign.workflow.tasks
    )
    return replace(campaign, workflow=Workflow(tasks))


def load_sites(path: Path | None, market: BuyingProtocol | None = None) -> tuple[SiteFacts, ...]:
    """
    The sites of a file, or this machine.

    Parameters
    ----------
    market
        How processors are bought at all of them; None: as the file says of each.
    """
    if path is None:
        from bursar.sites.local import this_machine

        found: tuple[SiteFacts, ...] = (this_machine(),)
    else:
        from bursar.api.site_resolution import read_counted_sites

        found = read_counted_sites(path)
    if market is None:
        return found
    if market in AUCTIONS and not any(site.remote is not None for site in found):
        raise InputError(
            f'no site holds {market} auctions: expected one with kind = "remote"', where="--market"
        )
    try:
        return tuple(with_market(site, market) for site in found)
    except ValueError as error:
        raise InputError(str(error), where="--market") from None


def with_agreement(
    sites: tuple[SiteFacts, ...], stated: str | None, *, gives_back: bool
) -> tuple[SiteFacts, ...]:
    """
    Return the sites, one of which is used by an agreement.

    Parameters
    ----------
    stated
        ``ID`` or ``ID@SITE``, as typed; None: no agreement is used.
    gives_back
        Whether the run gives the agreement back at the end.

    Raises
    ------
    InputError
        When it is not clear which site is meant.
    """
    if stated is None:
        if gives_back:
            raise InputError("goes with --agreement only", where="--give-back")
        return sites
    agreement, _, name = stated.partition("@")
    remote = [site.name for site in sites if site.remote is not None]
    if not agreement:
        raise InputError("expected ID or ID@SITE", where="--agreement")
    if not name and len(remote) != 1:
        kinds = f'{len(remote)} sites with kind = "remote"'
        raise InputError(f"there are {kinds}: expected ID@SITE", where="--agreement")
    name = name or remote[0]
    if name not in remote:
        raise InputError(f'"{name}" is no site with kind = "remote"', where="--agreement")

    def used(site: SiteFacts) -> SiteFacts:
        if site.name != name:
            return site
        buying = replace(
            site.buying,
            market="posted",
            reserve_price=None,
            agreement=agreement,
            gives_back=gives_back,
        )
        return replace(site, buying=buying)

    return tuple(used(site) for site in sites)


def brokering(
    *,
    choice: str | None,
    alpha: float | None,
    beta: float | None,
    weights: Path | None,
    refresh: str | None,
    rank_by: Literal["site", "index"] | None = None,
    seed: int = 0,
) -> Brokering | None:
    """
    How the command line wants jobs matched to sites; None: it does not say.

    Raises
    ------
    InputError
        Naming the option that is wrong, or the place in the file of weights.
    """
    if all(option is None for option in (choice, alpha, beta, weights, refresh, rank_by)):
        return None
    given: dict[str, object] = {"seed": seed}
    if weights is not None:
        if alpha is not None or beta is not None:
            raise InputError("goes without --alpha and --beta", where="--weights")
        from bursar.formats.network_files import read_weights

        found = read_weights(weights)
        given |= {"alpha": found.alpha, "beta": found.beta}
    if refresh is not None:
        from bursar.formats.units import parse_duration

        given["refresh"] = parsed(parse_duration, refresh, "--refresh")
    named = {"choice": choice, "alpha": alpha, "beta": beta, "rank_by": rank_by}
    given |= {option: value for option, value in named.items() if value is not None}
    for option, value in given.items():
        try:
            Brokering(**{option: value})  # type: ignore[arg-type]
        except ValueError as error:
            raise InputError(str(error), where=f"--{option}") from None
    return Brokering(**given)  # type: ignore[arg-type]


def by_factors(
    campaign: Campaign,
    sites: tuple[SiteFacts, ...],
    deadline_factor: float | None,
    budget_factor: float | None,
    *,
    given: tuple[str | None, str | None],
) -> Campaign:
    """
    Set the campaign's limits from ``--deadline-factor`` and ``--budget-factor``.

    Raises
    ------
    InputError
        When a limit is given both ways, or a factor makes no sense.
    """
    if deadline_factor is None and budget_factor is None:
        return campaign
    factors = (deadline_factor, budget_factor)
    for name, limit, factor in zip(("deadline", "budget"), given, factors, strict=True):
        if limit is not None and factor is not None:
            raise InputError(f"goes without --{name}", where=f"--{name}-factor")
    from bursar.api.planning import with_factors

    return with_factors(
        campaign, sites, deadline_factor=deadline_factor, budget_factor=budget_factor
    )


def with_options(
    goal: Goal,
    *,
    deadline: str | None,
    budget: str | None,
    trade_off: float | None,
    confidence: str | None,
) -> Goal:
    """Return the goal with the values of the options that were given."""
    from bursar.formats.units import parse_confidence, parse_deadline

    if deadline is not None:
        seconds = parsed(lambda text: parse_deadline(text, time.time()), deadline, "--deadline")
        goal = _replace(goal, "--deadline", deadline=seconds)
    if budget is not None:
        amount, currency = parse_budget(budget)
        goal = _replace(goal, "--budget", budget=amount, currency=currency)
    if trade_off is not None:
        goal = _replace(goal, "--trade-off", trade_off=trade_off)
    if confidence is not None:
        sure = parsed(parse_confidence, confidence, "--confidence")
        goal = _replace(goal, "--confidence", confidence=sure)
    return goal


def parse_budget(text: str) -> tuple[float, str | None]:
    """Amount and currency that ``--budget`` names."""
    from bursar.formats.units import parse_amount

    return parsed(parse_amount, text, "--budget")


def _replace(goal: Goal, option: str, **changes: object) -> Goal:
    try:
        return replace(goal, **changes)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(str(error), where=option) from None


def _replayed(campaign: Campaign, path: Path, scale: float, size_scale: float) -> Campaign:
    from bursar.formats.recorded_tasks import replay

    if not campaign.recorded:
        raise InputError(
            "is no recorded workflow; its tasks have programs of their own",
            where=str(path),
            hint="leave --replay out",
        )
    return replay(campaign, scale=scale, size_scale=size_scale)


def _with_runtime(campaign: Campaign, text: str) -> Campaign:
    from bursar.formats.units import parse_duration

    runtime = parsed(parse_duration, text, "--runtime")
    tasks = tuple(
        replace(task, runtime=runtime) if task.runtime is None else task
        for task in campaign.workflow.tasks
    )
    return replace(campaign, workflow=Workflow(tasks))
