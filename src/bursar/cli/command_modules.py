"""The modules of commands, each imported when one of its commands is asked for."""

import typer


def register_commands(module: str, app: typer.Typer) -> None:
    """Import a module of :mod:`bursar.cli` and add its commands to the command line."""
    match module:
        case "administration":
            from bursar.cli import administration

            administration.register_serve(app)
            administration.register_certs(app)
            administration.register_tokens(app)
        case "amending":
            from bursar.cli import amending

            amending.register(app)
        case "campaigns":
            from bursar.cli import campaigns

            campaigns.register_plan(app)
            campaigns.register_run(app)
            campaigns.register_simulate(app)
        case "dashboard":
            from bursar.cli import dashboard

            dashboard.register(app)
        case "exports":
            from bursar.cli import exports

            exports.register(app)
        case "history":
            from bursar.cli import history

            history.register(app)
        case "ledger":
            from bursar.cli import ledger

            ledger.register(app)
        case "kept_runs":
            from bursar.cli import kept_runs

            kept_runs.register(app)
        case "man_pages":
            from bursar.cli import man_pages

            man_pages.register(app)
        case "mapping":
            from bursar.cli import mapping

            mapping.register_map(app)
        case "replicas":
            from bursar.cli import replicas

            replicas.register(app)
        case "runs":
            from bursar.cli import runs

            runs.register(app)
            runs.register_attach(app)
        case "schemas":
            from bursar.cli import schemas

            schemas.register(app)
        case "service_commands":
            from bursar.cli import exports, service_commands

            exports.register_instances(service_commands.instance_app)
            service_commands.register(app)
            service_commands.register_account(app)
            service_commands.register_top(app)
        case "sites":
            from bursar.cli import sites

            sites.register(app)
            sites.register_match(app)
            sites.register_tune(app)
        case "slurm_shim":
            from bursar.cli import slurm_shim

            slurm_shim.register(app)
        case "submit":
            from bursar.cli import submit

            submit.register(app)
            submit.register_results(app)
        case "trace":
            from bursar.cli import trace

            trace.register(app)
        case "trading":
            from bursar.cli import exchange, trading

            exchange.register(app)
            trading.register(app)
            trading.register_owner(app)
        case _:
            raise ValueError(f"no module of the command line: {module}")
