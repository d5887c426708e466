"""Write job scripts, and submit a request once, although the answer may be lost."""

import math
import re
from collections.abc import Awaitable, Callable, Iterable

from bursar.model.errors import InputError, SiteError
from bursar.provisioning.lrm.resource_manager import JobRequest

# Job scripts have directives on top, then the site's own lines, then the commands of the job.

_PLAIN = re.compile(r"/[\w./+@=-]*")
_NAME = re.compile(r"[A-Za-z0-9_\-]{1,200}")


def check(request: JobRequest) -> None:
    """
    Check that a request describes a job that can exist.

    Raises
    ------
    InputError
        When no job can be as a request says.
    """
    if not _NAME.fullmatch(request.name):
        raise InputError(f"a job's name is letters, digits, - and _, got {request.name!r}")
    for name in ("processors", "copies"):
        if getattr(request, name) < 1:
            raise InputError(f"{name} must be at least 1, got {getattr(request, name)}")
    if not 0 < request.seconds < math.inf:
        raise InputError(f"seconds must be positive and finite, got {request.seconds}")
    if request.nodes is not None and not 1 <= request.nodes[0] <= request.nodes[1]:
        raise InputError(f"1 <= fewest <= most nodes must hold, got {request.nodes}")


def job_script(
    mark: str, directives: Iterable[str], setup: Iterable[str], request: JobRequest
) -> str:
    """
    The script of a request.

    Parameters
    ----------
    mark
        Prefix by which the scheduler knows a directive, such as ``#PBS``.
    directives
        Directives, those of the site last: of two that conflict, the later one wins.
    setup
        Lines of shell that come first.

    Raises
    ------
    InputError
        When a directive is not one line.
    """
    lines = ["#!/bin/sh"]
    for line in directives:
        if re.search(r"[\r\n\0]", line):
            raise InputError(f"a directive is one line, got {line!r}")
        lines.append(f"{mark} {line}")
    return "\n".join([*lines, *setup, request.script.rstrip("\n"), ""])


def element(variable: str, first: int) -> str:
    """
    Return the script line that sets a job's number among equal jobs, from 0 on.

    Parameters
    ----------
    variable
        Of the scheduler, with the number; of one job alone it may be empty, no number, or
        below the first.
    """
    return (
        f'case "${{{variable}-}}" in ""|*[!0-9]*) BURSAR_ELEMENT=0;;'
        f" *) BURSAR_ELEMENT=$(({variable} < {first} ? 0 : {variable} - {first}));; esac;"
        " export BURSAR_ELEMENT"
    )


def plain_folder(request: JobRequest) -> str:
    """
    Return the request's folder if the scheduler accepts the path.

    Raises
    ------
    SiteError
        When it has characters that mean something to a scheduler.
    """
    if not _PLAIN.fullmatch(request.folder):
        raise SiteError(
            f"the scheduler takes no such path: {request.folder}; name a folder from the root, of"
            ' letters, digits and any of . _ + @ = - only, with "folder"'
        )
    return request.folder


def plain_name(request: JobRequest) -> str:
    """Return a request's name with a letter in front, as most schedulers require."""
    return request.name if request.name[:1].isalpha() else f"j{request.name}"


# Submit a request once, although the answer may be lost.

JobIds = list[str]


class JobSubmitter:
    """
    Submits jobs, and finds jobs whose submission was not answered.

    After a time-out a scheduler may or may not have taken the job. The job is looked for by its
    unique name before the same request is submitted again.
    """

    def __init__(self) -> None:
        self._unsure: set[str] = set()

    async def once(
        self,
        name: str,
        hand_in: Callable[[], Awaitable[JobIds]],
        find: Callable[[str], Awaitable[JobIds]],
    ) -> JobIds:
        """
        Submit a request unless an earlier try succeeded; return the job ids.

        Parameters
        ----------
        hand_in
            Submits the request.
        find
            Returns the ids of jobs of that name; empty where there are none.

        Raises
        ------
        SiteError
            When the scheduler did not take the request; or, transient, when nobody can say.
        """
        if name in self._unsure:
            found = await find(name)
            self._unsure.discard(name)
            if found:
                return found
        try:
            return await hand_in()
        except SiteError as error:
            # A clear refusal: there is no job to look for.
            if not error.transient:
                raise
            try:
                found = await find(name)
            except SiteError:
                # Neither taken nor refused for certain: the next try looks for the job first.
                self._unsure.add(name)
                raise error from None
            if found:
                return found
            raise
