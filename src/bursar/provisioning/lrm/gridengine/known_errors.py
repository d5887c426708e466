"""Known error messages of Grid Engine, with hints on what to change."""

from bursar.provisioning.lrm.command_errors import KnownComplaint

UNREACHABLE = (
    r"unable to (send message|contact|initialize environment because of error: commlib)"
    r"|got select error|commlib error|can't connect|cannot connect|failed receiving gdi"
    r"|got (send|read) error|timeout|answer list from qmaster"
)

COMPLAINTS = (
    KnownComplaint(
        r"SGE_ROOT directory|set the environment variable SGE_ROOT|cell directory",
        'set SGE_ROOT and SGE_CELL in the site\'s "environment"',
    ),
    KnownComplaint(UNREACHABLE, "the queue master does not answer", transient=True),
    KnownComplaint(r"unknown queue", 'name one that "qconf -sql" lists as "queue"'),
    KnownComplaint(
        r"project", '"account" names a project that you may charge ("qconf -sprjl" lists them)'
    ),
    KnownComplaint(
        r"parallel environment",
        'name one that "qconf -spl" lists by a directive "-pe NAME"',
    ),
    KnownComplaint(
        r"no suitable queues",
        "no queue could ever run it: ask for less time or fewer processors, or name another queue",
    ),
    KnownComplaint(
        r'in userset "arusers"|must be (manager|operator)',
        "reservations are for members of arusers here; pilots with a begin time are used instead",
    ),
    KnownComplaint(
        r"no suitable resources|not enough .*slots", "ask for fewer, or for another time"
    ),
    KnownComplaint(
        r"only \d+ jobs? (are|is) allowed|job .*limit|jobs? .*per user",
        'your share of jobs is used up: lower "max_pending"',
    ),
    KnownComplaint(
        r"no permission|permission denied|not allowed|denied: (host|user)|no submit host",
        "ask the administrators for access from this host",
    ),
    KnownComplaint(
        r"unknown resource|invalid option|invalid argument|not a (time|valid)",
        'look at the site\'s "directives"',
    ),
)
"""Error messages of Son of Grid Engine 8.1.9; the first match counts."""
