"""The first administrator's token."""

from pathlib import Path

from bursar.remote.admin_messages import NewToken
from bursar.service.identity.secret_files import write_file
from bursar.service.identity.tokens import MOST_SECONDS, JournalTokenStore
from bursar.service.interfaces import SCOPES, ServiceJournal


async def provide_first_token(
    tokens: JournalTokenStore, journal: ServiceJournal, path: Path, user: str
) -> bool:
    """
    Write a token of all scopes into a file, unless an administrator has a good one.

    This happens on the first start, and after all administrators' tokens have expired. It grants
    nothing new: anybody who can read the service's folder controls the service.

    Parameters
    ----------
    path
        File for the token, with mode 0600; a file of that name is replaced.
    user
        Name of the user whose token is made.

    Returns
    -------
    bool
        Whether a token was made.

    Raises
    ------
    BursarError
        When the file cannot be written.
    ServiceError
        507, when the journal cannot.
    """
    if any("admin" in token.scopes for token in tokens.tokens()):
        return False
    made = tokens.create(
        NewToken(user=user, scopes=list(SCOPES), seconds=MOST_SECONDS, label="first")
    )
    # The file first: a crash in between leaves a token that nobody takes, and the next start
    # makes another; the other way round it would leave one that nobody knows.
    write_file(path, f"{made.token}\n".encode(), replace=True)
    await journal.durable()
    return True
