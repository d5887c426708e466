"""The script that a machine runs when it starts: a pilot that connects back, then the end."""

import math
import shlex
from collections.abc import Sequence

from bursar.model.cloud import GRACE
from bursar.provisioning.interruptions import LOOKS

MOST_BYTES = 16_000
"""Longest script that all providers take."""

_SCRIPT = """\
#!/bin/sh
# Starts a pilot of Bursar, which connects to its run; whatever happens, the machine ends after it.
umask 077
folder=$(mktemp -d)
end() {{
  rm -rf "$folder"
  shutdown -h now || poweroff || halt -p
}}
trap end EXIT
trap 'exit 1' TERM INT HUP
# Also where the lines below hang: nobody may come to end this machine, and a shell heeds a signal
# only when the command that it runs has ended.
( sleep {start_limit}; [ -e "$folder/started" ] || end ) &
set -e
cat > "$folder/credential.json" <<'BURSAR_CREDENTIAL'
{credential}
BURSAR_CREDENTIAL
{setup}
touch "$folder/started"
set +e
BURSAR_PROCESSORS={processors} {python} -P -m bursar.provisioning.pilot "$folder/credential.json" &
pilot=$!
{watches}wait $pilot
exit
"""

_LIFETIME = """\
( sleep {seconds}; kill -TERM $pilot ) &
"""

_NOTICE = """\
{python} -P -m bursar.provisioning.interruptions {provider} $pilot {grace:g} {hook} &
"""


def user_data(
    credential: bytes,
    *,
    processors: int,
    python: str,
    setup: Sequence[str] = (),
    start_limit: float,
    lifetime: float = math.inf,
    notices: str = "",
    on_notice: Sequence[str] = (),
    grace: float = GRACE,
) -> str:
    """
    Return the script of a machine.

    Parameters
    ----------
    credential
        The pilot's credential, one line of JSON. Secret, and therefore the script is, too.
    start_limit
        Seconds after which a machine whose pilot has not started ends by itself.
    lifetime
        Seconds after which the pilot ends; infinite: when its run does.
    notices
        Provider whose notice that the machine is taken back is looked for; empty: nobody looks.
    on_notice
        Lines of shell that run then, before tasks are stopped.
    grace
        Seconds that tasks have after SIGTERM then.
    """
    watches = ""
    if math.isfinite(lifetime):
        watches += _LIFETIME.format(seconds=max(1, math.ceil(lifetime)))
    if notices in LOOKS:
        hook = " ".join(shlex.quote(line) for line in on_notice)
        watches += _NOTICE.format(
            python=shlex.quote(python), provider=notices, grace=grace, hook=hook
        )
    return _SCRIPT.format(
        credential=credential.decode(),
        processors=processors,
        python=shlex.quote(python),
        setup="\n".join(setup) or ":",
        start_limit=math.ceil(start_limit),
        watches=watches,
    )
