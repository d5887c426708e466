"""``bursar simulate``: a campaign, or a past run, in simulated time."""

import sys

import typer

from bursar.broker.strategies import POLICIES
from bursar.cli.campaign_options import (
    REFUSED_BY_SIMULATE,
    WITH_REPLAYED_RUN,
    CampaignOptions,
    refuse,
    refuse_others,
    takes_campaign_options,
)
from bursar.cli.output import print_outcome
from bursar.model.errors import InputError


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("simulate")(takes_campaign_options(simulate_campaign))


def simulate_campaign(options: CampaignOptions, named: frozenset[str]) -> None:
    """Plan, run and bill a campaign in simulated time: nothing is started or spent."""
    refuse(named, REFUSED_BY_SIMULATE)
    if options.campaign is None:
        if options.replay is None:
            raise InputError("give a CAMPAIGN, or --replay RUN")
        refuse_others(named, "--replay", WITH_REPLAYED_RUN)
        _replay(options.replay, options)
        return
    if "--policy" in named:
        raise InputError("goes with --replay RUN, without a CAMPAIGN", where="--policy")
    from bursar.api.simulating import simulate
    from bursar.cli.load import load_asked
    from bursar.simulation.execution_model import ExecutionUncertainty

    asked = load_asked(options.campaign, options)
    chance = ExecutionUncertainty(
        spread=options.spread,
        failures=options.failures,
        seed=options.seed,
        hidden=options.hide_runtimes,
    )
    print_outcome(
        lambda: simulate(
            asked.campaign,
            asked.sites,
            provisioning=options.provisioning,
            strategy=options.strategy,
            out_of_reach=options.out_of_reach,
            broker=asked.broker,
            catalogue=options.catalogue,
            processors=options.processors,
            method=options.method,
            scheduler=options.scheduler,
            chance=chance,
            anyway=options.anyway,
            name=options.name,
            runs=options.runs,
            progress=not options.quiet,
            argv=sys.argv,
        ),
        as_json=options.as_json,
    )


def _replay(run: str, options: CampaignOptions) -> None:
    policy = options.policy
    if policy != "all" and policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise InputError(f'expected all or one of {known}, got "{policy}"', where="--policy")
    from bursar.api.replaying import replay
    from bursar.cli.output import print_json

    wanted = POLICIES if policy == "all" else [p for p in POLICIES if p == policy]
    summary = replay(run, wanted, runs=options.runs)
    if options.as_json:
        print_json(summary.to_dict())
    else:
        summary.print()
