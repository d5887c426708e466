"""
Jobs in the Job Description Language of the European DataGrid and gLite, as campaigns.

A file is one ClassAd: a job, a collection of jobs, or a graph of them.
``docs/reference/jdl.md`` describes what is read and what each attribute does here.

References
----------
.. [1] Pacini (2001). Job Description Language HowTo. DataGrid-01-TEN-0102.
.. [2] Pacini (2006). Job Description Language attributes specification. EGEE-JRA1-TEC-590869.
"""

from pathlib import Path

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.workflow import Workflow

__all__ = ["read_jdl"]


def read_jdl(path: Path) -> Campaign:
    """
    Read the campaign that a JDL file describes.

    Parameters
    ----------
    path
        The file. Its folder is the campaign's root.

    Raises
    ------
    InputError
        At file, line and column: what was found and what was expected. Requirements and
        ranks are parsed here.
    """
    from bursar.formats.jdl.nodes import tasks_of

    path = Path(path)
    tasks = tasks_of(path)
    try:
        workflow = Workflow(tasks)
    except InputError as error:
        raise error.within(str(path)) from None
    return Campaign(
        name=path.stem,
        workflow=workflow,
        root=path.resolve().parent,
        source=path,
    )
