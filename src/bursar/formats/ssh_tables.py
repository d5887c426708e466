"""The table of a site that is a list of machines, reached by ssh, and inventory files of these."""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import joined
from bursar.formats.quantities import Schema, Size
from bursar.formats.site_tables import LeasedSiteTable, Processors, Text, existing_file
from bursar.model.errors import InputError, errors_within
from bursar.model.provisioning import SshHost, SshHosts

_SSH_HOST = re.compile(r"([A-Za-z0-9_.][^\s@]*@)?[A-Za-z0-9_.:\[][^\s@]*")


class SshHostTable(TomlTable, frozen=True, kw_only=True):
    """A machine that is reached by ssh."""

    host: Annotated[Text, Meta(description="The machine as ssh knows it: user@host, or host.")]
    processors: Annotated[
        Processors | None,
        Meta(description="Processors that may be used; default: all, the host is asked."),
    ] = None
    memory: Annotated[Size | None, Meta(description="Its memory; default: the host is asked.")] = (
        None
    )
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(description="Port of its ssh server; default: as ssh is configured."),
    ] = None

    def machine(self) -> SshHost:
        """
        Return the machine.

        Raises
        ------
        InputError
            When ssh would not take the name for a host.
        """
        # ssh would take a dash for an option, and options can run programs (ProxyCommand).
        if not _SSH_HOST.fullmatch(self.host):
            raise InputError(f'expected user@host or host, got "{self.host}"', where="host")
        return SshHost(
            name=self.host, processors=self.processors, memory=self.memory, port=self.port
        )


class SshSiteTable(LeasedSiteTable, frozen=True, tag="ssh", kw_only=True):
    """Plain machines without a scheduler, reached by ssh."""

    noun: ClassVar[str] = "a list of machines"
    site_kind: ClassVar[str] = "ssh"
    refused: ClassVar = {
        "processors": 'stated for each machine: hosts = [{ host = "node1", processors = 8 }]'
    }
    schema_rules: ClassVar[Schema] = {
        "oneOf": [
            {"required": ["hosts"], "properties": {"hosts": {"minItems": 1}}},
            {"required": ["inventory"]},
        ]
    }

    hosts: Annotated[
        tuple[Text | SshHostTable, ...],
        Meta(description="The machines: user@host, or tables with host, processors, memory, port."),
    ] = ()
    inventory: Annotated[
        Text | None,
        Meta(description="File with one machine a line, relative to this file, instead of hosts."),
    ] = None
    jump: Annotated[
        Text | None,
        Meta(description="Host over which the connections go, as ssh -J takes it; default: none."),
    ] = None
    identity_file: Annotated[
        Text | None,
        Meta(description="Private key, relative to this file; default: as ssh is configured."),
    ] = None
    ssh: Annotated[
        tuple[Text, ...], Meta(description="Further arguments of ssh, one word each.")
    ] = ()
    python: Annotated[
        Text | None,
        Meta(description="Interpreter at the hosts that has Bursar; default: the one in use here."),
    ] = None
    reach: Annotated[
        Text | None,
        Meta(
            description="Host or address by which the hosts reach this machine; default: its name."
        ),
    ] = None
    reverse: Annotated[
        bool,
        Meta(
            description="Whether workers come back through the ssh connections, where the hosts "
            "cannot reach this machine."
        ),
    ] = False
    shared: Annotated[
        bool,
        Meta(
            description="Whether several runs of the same user may use the same processors at a "
            "time."
        ),
    ] = True
    shared_folder: Annotated[
        bool | None,
        Meta(
            description="Whether the hosts see the run's folder; files are carried to and from "
            "those that do not. Default: each host is asked."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosts and self.inventory is not None:
            raise InputError("expected hosts or an inventory file, not both", where="inventory")
        if not self.hosts and self.inventory is None:
            raise InputError(
                "a list of machines needs hosts",
                hint='give it hosts = ["user@node1"], or inventory = "hosts.txt"',
            )
        for key in ("jump", "python", "reach"):
            text = getattr(self, key) or ""
            if text.startswith("-") or not text.isprintable() or " " in text:
                raise InputError("expected a word that is no option", where=key)
        for i, word in enumerate(self.ssh):
            if not word.isprintable():
                raise InputError("expected printable characters", where=joined("ssh", i))
        if self.reverse and self.reach is not None:
            raise InputError(
                "says where workers find this machine, and with reverse they do not look for it",
                where="reach",
            )

    def endpoint(self, folder: Path) -> dict[str, Any]:
        if self.inventory is not None:
            path = Path(existing_file("inventory", self.inventory, folder))
            try:
                hosts = parse_inventory(path.read_text())
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read: {error}", where="inventory") from None
            except InputError as error:
                raise InputError(f"{path}: {error}", where="inventory") from None
        else:
            found = []
            for i, host in enumerate(self.hosts):
                with errors_within(joined("hosts", i)):
                    table = SshHostTable(host=host) if isinstance(host, str) else host
                    found.append(table.machine())
            hosts = tuple(found)
        labels = [host.label for host in hosts]
        for label in labels:
            if labels.count(label) > 1:
                key = "hosts" if self.inventory is None else "inventory"
                raise InputError(f'names "{label}" twice', where=key)
        machines = SshHosts(
            hosts=hosts,
            jump=self.jump,
            identity_file=existing_file("identity_file", self.identity_file, folder) or None,
            options=self.ssh,
            python=self.python,
            reach=self.reach,
            reverse=self.reverse,
            shared=self.shared,
            shared_folder=self.shared_folder,
        )
        # One of each host that states none: before a run, and before a plan, hosts are asked.
        return {"processors": sum(host.processors or 1 for host in hosts), "ssh": machines}


def parse_inventory(text: str) -> tuple[SshHost, ...]:
    """
    Parse an inventory: a host a line, maybe with processors=, memory= and port=; # is a comment.

    Raises
    ------
    InputError
        With the line.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        raw: dict[str, Any] = {"host": words[0]}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals or key not in ("processors", "memory", "port") or key in raw:
                raise InputError(
                    f'expected processors=, memory= or port=, each once, got "{word}"',
                    where=f"line {number}",
                )
            is_number = key != "memory" and value.isdecimal() and len(value) < 20
            raw[key] = int(value) if is_number else value
        with errors_within(f"line {number}"):
            hosts.append(decode(raw, SshHostTable).machine())
    if not hosts:
        raise InputError("names no host")
    return tuple(hosts)
