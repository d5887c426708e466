"""The script that a machine runs when it starts: a pilot that connects back, then the end."""

import math
import shlex
from collections.abc import Sequence

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
(
  while kill -0 $pilot 2>/dev/null; do
    if {test}; then
      {hook}
      kill -TERM $pilot
      exit
    fi
    sleep 5
  done
) &
"""

NOTICES = {
    "ec2": (
        'curl -sf -m 2 -H "X-aws-ec2-metadata-token: $(curl -sf -m 2 -X PUT '
        '-H "X-aws-ec2-metadata-token-ttl-seconds: 60" http://169.254.169.254/latest/api/token)" '
        "http://169.254.169.254/latest/meta-data/spot/instance-action >/dev/null"
    ),
    "gce": (
        '[ "$(curl -sf -m 2 -H "Metadata-Flavor: Google" '
        'http://metadata.google.internal/computeMetadata/v1/instance/preempted)" = TRUE ]'
    ),
    "azure_arm": (
        'curl -sf -m 2 -H "Metadata: true" '
        "'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01' | grep -q Preempt"
    ),
}
"""Shell commands that succeed once the provider has announced that it takes the machine back."""


def user_data(
    credential: bytes,
    *,
    processors: int,
    python: str,
    setup: Sequence[str] = (),
    start_limit: float,
    lifetime: float = math.inf,
    notice: str = "",
    on_notice: Sequence[str] = (),
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
    notice
        Command that succeeds once the machine is about to be taken back; empty: there is none.
    on_notice
        Lines of shell that run then, before tasks are stopped.
    """
    watches = ""
    if math.isfinite(lifetime):
        watches += _LIFETIME.format(seconds=max(1, math.ceil(lifetime)))
    if notice:
        hook = "\n      ".join(on_notice) or ":"
        watches += _NOTICE.format(test=notice, hook=hook)
    return _SCRIPT.format(
        credential=credential.decode(),
        processors=processors,
        python=shlex.quote(python),
        setup="\n".join(setup) or ":",
        start_limit=math.ceil(start_limit),
        watches=watches,
    )
