"""``bursar replicas``: which copies there are of logical files, and making more of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.options import AsJson, print_json, print_note
from bursar.model.errors import BursarError, InputError

if TYPE_CHECKING:
    from bursar.model.matching import Replica
    from bursar.replicas.catalogue import Catalogue, CatalogueEntry
    from bursar.replicas.content import LogicalFileContent
    from bursar.report.progress import CopyProgress

CatalogueFile = Annotated[
    Path,
    typer.Option(
        "--catalogue",
        metavar="FILE",
        envvar="BURSAR_CATALOGUE",
        help="File of the replica catalogue.",
    ),
]
CATALOGUE = Path("replicas.sqlite")
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Logical name of a file.", show_default=False)
]
Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help='Pattern of logical names, such as "run7/*".')
]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME...", help="Logical names. Default: all.")
]
Site = Annotated[
    str | None, typer.Option("--site", metavar="SITE", help="Take only copies at this site.")
]


def register(app: typer.Typer) -> None:
    """Add ``bursar replicas`` to the command line."""
    replicas = typer.Typer(
        no_args_is_help=True,
        help="Find, copy and check the copies of logical files.",
    )
    for name, command in (
        ("add", add_copies),
        ("list", list_copies),
        ("locate", locate_file),
        ("copy", copy_files),
        ("verify", verify_copies),
        ("remove", remove_copies),
    ):
        replicas.command(name)(command)
    app.add_typer(replicas, name="replicas")


def add_copies(
    name: Name,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="URL or path of the copy.", show_default=False)
    ],
    site: Annotated[
        str, typer.Option("--site", metavar="SITE", help="Site that holds the copy.")
    ] = "",
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size of the file; the copy is then not read."),
    ] = None,
    checksum: Annotated[
        str | None,
        typer.Option(metavar="sha256:HEX", help="Checksum of the file; the copy is then not read."),
    ] = None,
    recursive: Annotated[
        bool,
        typer.Option("--recursive", help="URL is a folder: register each file in it as NAME/path."),
    ] = False,
    catalogue: CatalogueFile = CATALOGUE,
    as_json: AsJson = False,
) -> None:
    """
    Register a copy of a logical file. The copy is read for its size and checksum unless given.
    """
    from bursar.model.matching import Replica
    from bursar.replicas.catalogue import Catalogue
    from bursar.replicas.content import LogicalFileContent, normalise_url
    from bursar.report.progress import CopyProgress

    url = normalise_url(url)
    if recursive and not (size is None and checksum is None):
        raise InputError("of each file its own: leave --size and --checksum out", where=name)
    given = LogicalFileContent(_bytes(size), checksum)
    found = list(_files_below(name, url)) if recursive else [(name, url)]
    with Catalogue(catalogue) as opened, CopyProgress("reading") as progress:
        replicas = []
        for logical, place in found:
            content = _read(logical, place, progress) if given == LogicalFileContent() else given
            replicas.append(
                Replica(
                    name=logical,
                    site=site,
                    url=place,
                    size=content.size,
                    checksum=content.checksum,
                )
            )
        opened.register_all(replicas)
    if as_json:
        print_json({"added": [_as_dict(replica) for replica in replicas]})
    else:
        print_note(f"registered {len(replicas)} cop{'y' if len(replicas) == 1 else 'ies'}")


def list_copies(
    pattern: Pattern = "*",
    site: Site = None,
    catalogue: CatalogueFile = CATALOGUE,
    as_json: AsJson = False,
) -> None:
    """List the copies of logical files, including bad ones."""
    from bursar.replicas.catalogue import Catalogue

    with Catalogue(catalogue, make=False) as opened:
        _show(opened.entries(pattern, site=site), as_json=as_json)


def locate_file(name: Name, catalogue: CatalogueFile = CATALOGUE, as_json: AsJson = False) -> None:
    """Show the good copies of a logical file; the exit status is 1 if there is none."""
    from bursar.replicas.catalogue import Catalogue, CatalogueEntry
    from bursar.replicas.content import logical

    name = logical(name)
    with Catalogue(catalogue, make=False) as opened:
        if opened.content(name) is None:
            raise InputError("is not in the catalogue", where=name)
        found = opened.locate(name)
    _show([CatalogueEntry(replica) for replica in found], as_json=as_json)
    if not found:
        raise BursarError(f"{name}: every copy is bad; see bursar replicas verify")


def copy_files(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Logical names of files.", show_default=False),
    ],
    to: Annotated[str, typer.Option("--to", metavar="SITE", help="Site that receives the copies.")],
    sites: Annotated[
        Path, typer.Option("--sites", metavar="FILE", help="Sites file, which names the storages.")
    ],
    catalogue: CatalogueFile = CATALOGUE,
    as_json: AsJson = False,
) -> None:
    """
    Copy files into a site's storage from the nearest copies, and register the new copies.

    New copies are verified; an interrupted copy is continued.
    """
    import asyncio

    from bursar.formats.sites_toml import read_sites
    from bursar.replicas.catalogue import Catalogue
    from bursar.replicas.stager import Stager, links_of, open_stores
    from bursar.report.progress import CopyProgress

    facts = read_sites(sites)
    if all(site.name != to for site in facts):
        raise InputError(f'there is no site "{to}"', where=str(sites))
    mine = [site for site in facts if site.name == to]

    async def bring() -> dict[str, str]:
        with Catalogue(catalogue, make=False) as opened, CopyProgress("copying") as progress:
            stager = Stager(opened, open_stores(mine), link=links_of(facts))
            try:
                return await stager.bring(names, to, "bursar replicas copy", on_file=progress)
            finally:
                stager.close()

    places = asyncio.run(bring())
    if as_json:
        print_json({"site": to, "files": [{"name": n, "url": u} for n, u in places.items()]})
        return
    for name, place in places.items():
        print(f"{name}\t{place}")


def verify_copies(
    names: Names = None,
    site: Site = None,
    catalogue: CatalogueFile = CATALOGUE,
    as_json: AsJson = False,
) -> None:
    """
    Verify copies by their checksums; the exit status is 1 if one is bad.

    A bad copy is no longer used until it verifies again.
    """
    from bursar.replicas.catalogue import Catalogue
    from bursar.replicas.copying import check_copy
    from bursar.report.progress import CopyProgress

    checked = []
    with Catalogue(catalogue, make=False) as opened, CopyProgress("reading") as progress:
        for entry in _chosen(opened, names, site):
            replica = entry.replica
            checked.append(check_copy(opened, replica, on_bytes=progress.of(replica.name)))
    faults = [found for found in checked if found.fault is not None]
    if as_json:
        print_json(
            {
                "copies": [
                    {**_as_dict(found.replica), "fault": found.fault, "bad": found.bad}
                    for found in checked
                ]
            }
        )
    else:
        for found in faults:
            print(f"{found.replica.name}: {_place(found.replica)} {found.fault}")
        print(f"{len(checked) - len(faults)} of {len(checked)} copies are good")
    if faults:
        raise typer.Exit(1)


def remove_copies(
    name: Name,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Take only the copy at this URL.")
    ] = None,
    site: Site = None,
    catalogue: CatalogueFile = CATALOGUE,
    as_json: AsJson = False,
) -> None:
    """Remove copies of a logical file from the catalogue; the files themselves stay."""
    from bursar.replicas.catalogue import Catalogue

    with Catalogue(catalogue, make=False) as opened:
        count = opened.unregister(name, url=url, site=site)
    if not count:
        raise InputError("there is no such copy in the catalogue", where=name)
    if as_json:
        print_json({"name": name, "removed": count})
    else:
        copies = "1 copy" if count == 1 else f"{count} copies"
        print_note(f"removed {copies} of {name} from the catalogue; the files are still there")


def _files_below(name: str, folder: str) -> Iterator[tuple[str, str]]:
    """Logical name and path of each file in a folder of this machine."""
    from bursar.replicas.content import OWN_FOLDER

    top = Path(folder)
    if not top.is_dir():
        raise InputError("--recursive needs a folder of this machine", where=folder)
    for path in sorted(top.rglob("*")):
        inner = path.relative_to(top)
        if path.is_file() and inner.parts[0] != OWN_FOLDER:
            yield f"{name}/{inner.as_posix()}", str(path)


def _read(name: str, url: str, progress: "CopyProgress") -> "LogicalFileContent":
    """Read a copy and return the content's size and digest."""
    from bursar.replicas.content import CancellationToken, SourceFailed, redact_url
    from bursar.replicas.copying import read_content

    try:
        return read_content(url, stop=CancellationToken(), on_bytes=progress.of(name))
    except SourceFailed as failure:
        raise InputError(failure.reason, where=redact_url(url)) from None


def _bytes(size: str | None) -> int | None:
    from bursar.formats.units import parse_size

    try:
        return None if size is None else parse_size(size)
    except InputError as error:
        raise error.within("--size") from None


def _chosen(
    catalogue: "Catalogue", names: "list[str] | None", site: str | None
) -> "list[CatalogueEntry]":
    """List the copies of the named files, or of all files."""
    from bursar.replicas.content import logical

    entries = catalogue.entries(site=site)
    if not names:
        return entries
    wanted = {logical(name) for name in names}
    chosen = [entry for entry in entries if entry.replica.name in wanted]
    for name in sorted(wanted - {entry.replica.name for entry in chosen}):
        raise InputError("there is no such copy in the catalogue", where=name)
    return chosen


def _show(entries: "Sequence[CatalogueEntry]", *, as_json: bool) -> None:
    from bursar.formats.units import format_size
    from bursar.report.tables import UNKNOWN

    if as_json:
        print_json({"copies": [{**_as_dict(e.replica), "bad": e.bad} for e in entries]})
        return
    lines = [("name", "size", "site", "copy")]
    for entry in entries:
        replica = entry.replica
        size = UNKNOWN if replica.size is None else format_size(replica.size)
        place = _place(replica) if entry.bad is None else f"{_place(replica)}  (bad: {entry.bad})"
        lines.append((replica.name, size, replica.site or "-", place))
    wide = [max(len(line[column]) for line in lines) for column in range(3)]
    for name, size, site, place in lines:
        print(f"{name:{wide[0]}}  {size:>{wide[1]}}  {site:{wide[2]}}  {place}")


def _place(replica: "Replica") -> str:
    from bursar.replicas.content import redact_url

    return redact_url(replica.url)


def _as_dict(replica: "Replica") -> dict[str, Any]:
    return {
        "name": replica.name,
        "site": replica.site,
        "url": _place(replica),
        "size": replica.size,
        "checksum": replica.checksum,
    }
