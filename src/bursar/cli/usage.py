"""``bursar ledger key``, ``sign`` and ``check``: usage records a provider vouches for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.options import AsJson, print_json, print_note
from bursar.model.errors import BursarError, InputError

if TYPE_CHECKING:
    from bursar.market.agreement import SignedRecord

BookFile = Annotated[
    Path,
    typer.Option(
        "--book",
        metavar="FILE",
        envvar="BURSAR_BOOK",
        help="File of the book; to read only, also the folder of a service that is stopped.",
    ),
]
BOOK = Path("bursar.book")
KeyFile = Annotated[
    Path, typer.Option("--key", metavar="FILE", help="The provider's private key (PEM).")
]
Chain = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="File of signed usage records, one a line.", show_default=False
    ),
]


def make_key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write.", show_default=False)
    ],
) -> None:
    """
    Make a key that signs usage records: FILE, and FILE.pub for those who check.
    """
    from bursar.market.usage import new_key, write_public_key

    key = new_key(file)
    public = file.with_name(f"{file.name}.pub")
    write_public_key(public, key.public_key())
    print_note(f"wrote {file} (keep it) and {public} (give it to customers)")


def sign_usage(
    provider: Annotated[
        str, typer.Argument(metavar="PROVIDER", help="Name of the provider.", show_default=False)
    ],
    file: Chain,
    key: KeyFile,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """
    Sign a provider's deliveries from the book that FILE does not contain yet.

    Each record holds the hash of the record before, so that none can be changed, left out or moved.
    """
    from bursar.market.book import read_book
    from bursar.market.usage import encode_signed, read_key, sign
    from bursar.runs.folder import append_durably

    state = read_book(book)
    state.accounts.known(provider, "provider")
    private = read_key(key)
    chain = _read(file) if file.exists() else []
    there = {(s.record.agreement, s.record.job) for s in chain}
    last = chain[-1] if chain else None
    fresh = []
    for record in state.usage:
        if record.provider == provider and (record.agreement, record.job) not in there:
            last = sign(record, private, last)
            fresh.append(last)
    append_durably(file, b"".join(encode_signed(signed) + b"\n" for signed in fresh))
    if as_json:
        print_json({"provider": provider, "signed": len(fresh), "records": len(chain) + len(fresh)})
    else:
        print_note(f"signed {len(fresh)} records; {file} has {len(chain) + len(fresh)}")


def check_usage(
    file: Chain,
    public: Annotated[
        Path, typer.Option("--public", metavar="FILE", help="The provider's public key (PEM).")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a provider's signed usage records for changed, missing or moved ones."""
    from bursar.market.usage import check_chain, read_public_key

    chain = _read(file)
    faults = check_chain(chain, read_public_key(public))
    if as_json:
        print_json({"records": len(chain), "faults": faults})
    elif not faults:
        print(f"{len(chain)} records are as they were signed")
    if faults:
        raise BursarError(f"{file}: {'; '.join(faults)}")


def _read(file: Path) -> "list[SignedRecord]":
    from bursar.market.usage import decode_signed

    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(decode_signed(line))
        except InputError as error:
            raise error.within(f"{file}:{number}") from None
    return records
