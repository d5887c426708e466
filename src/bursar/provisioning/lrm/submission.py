"""Submit a request once, although the answer may be lost."""

from collections.abc import Awaitable, Callable

from bursar.model.errors import SiteError

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
        name
            Name of the request.
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
