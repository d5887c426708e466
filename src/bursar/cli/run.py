"""``bursar run``: plan, buy, run, watch and bill a campaign; or resume one."""

import sys
from typing import TYPE_CHECKING

import typer

from bursar.cli.campaign_options import (
    REFUSED_BY_RUN,
    WITH_RESUME,
    CampaignOptions,
    refuse,
    refuse_others,
    takes_campaign_options,
)
from bursar.cli.output import print_outcome
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.api.running import RunResult


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("run")(takes_campaign_options(run_campaign))


def run_campaign(options: CampaignOptions, named: frozenset[str]) -> None:
    """Plan and run a campaign, and bill it. After Ctrl-C the run can be resumed."""
    if options.resume is not None:
        if options.campaign is not None:
            raise InputError("takes no CAMPAIGN: the run has its own", where="--resume")
        refuse_others(named, "--resume", WITH_RESUME)
        print_outcome(lambda: _go_on(options), as_json=options.as_json)
    refuse(named, REFUSED_BY_RUN)
    if options.retry_failed:
        raise InputError("goes with --resume only", where="--retry-failed")
    if options.campaign is None:
        if options.replay is not None:
            raise InputError(
                "a past run is replayed in simulated time: bursar simulate --replay RUN",
                where="--replay",
            )
        raise InputError("give a CAMPAIGN, or --resume RUN")
    from bursar.api.running import run
    from bursar.cli.load import load_asked

    asked = load_asked(options.campaign, options)
    print_outcome(
        lambda: run(
            asked.campaign,
            asked.sites,
            processors=options.processors,
            provisioning=options.provisioning,
            strategy=options.strategy,
            out_of_reach=options.out_of_reach,
            broker=asked.broker,
            catalogue=options.catalogue,
            method=options.method,
            scheduler=options.scheduler,
            account=options.account,
            book=options.book,
            oversubscribe=options.oversubscribe,
            anyway=options.anyway,
            name=options.name,
            runs=options.runs,
            progress=not options.quiet,
            argv=sys.argv,
            detach=options.detach,
        ),
        as_json=options.as_json,
    )


def _go_on(options: CampaignOptions) -> "RunResult":
    from bursar.api.running import resume
    from bursar.cli.load import parse_budget

    assert options.resume is not None
    return resume(
        options.resume,
        runs=options.runs,
        budget=None if options.budget is None else parse_budget(options.budget),
        retry_failed=options.retry_failed,
        anyway=options.anyway,
        progress=not options.quiet,
        detach=options.detach,
    )
