"""Errors between a client and an execution service."""

from bursar.model.errors import BursarError, SiteError
from bursar.remote.messages import Problem

LATER = frozenset({408, 425, 429, 502, 503, 504, 507})
"""HTTP statuses after which a retry may succeed."""

_NOT_INPUT = frozenset({402, 408, 425, 429})
"""HTTP statuses 4xx that are no fault of the request."""


class RemoteProblem(BursarError):
    """
    An execution service has refused a request.

    Parameters
    ----------
    site
        Name of the service.
    problem
        Problem document of the service.
    shown
        Credentials that were used, for messages; empty: not relevant.

    Attributes
    ----------
    kind
        Last part of the problem's type: ``"not-found"``, ``"over-quota"``; empty when it names
        none.
    transient
        Whether the same request may succeed later.
    exit_status
        Exit status for a command: 2 where the input is at fault, otherwise 1.
    """

    def __init__(self, site: str, problem: Problem, shown: str = "") -> None:
        self.site = site
        self.problem = problem
        self.kind = problem.type.rpartition("/problems/")[2] if "/" in problem.type else ""
        self.transient = problem.status in LATER
        bad_input = 400 <= problem.status < 500 and problem.status not in _NOT_INPUT
        self.exit_status = 2 if bad_input else 1
        detail = problem.detail or problem.title or f"refused, status {problem.status}"
        line = ": ".join(part for part in (site, problem.where, detail) if part)
        super().__init__(f"{line} ({shown})" if shown else line)

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """Description of this case in one line."""
        return self.problem.detail

    @property
    def where(self) -> str:
        """Field of the request that caused the problem; empty: none."""
        return self.problem.where


class ServiceUnreachable(SiteError):
    """A service cannot be reached, or the answer broke off; a retry may help."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class InvalidServiceResponse(SiteError):
    """The peer is not a Bursar service, not the expected one, or refuses this client in TLS."""
