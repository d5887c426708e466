"""
Container runtimes for tests: the real ones where they work, and stand-ins where they do not.

A stand-in takes the options that the real one documents, and refuses others. Its containers see a
root of their own, with the machine's programs and what is mounted. Those of Docker and Podman are
started by a service, here a thread of the test, and are no children of whoever asked for them.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLIENT = """\
#!{python}
import argparse, csv, json, os, shlex, signal, socket, sys, time
KIND, STATE = {kind!r}, {state!r}
sys.path.insert(0, {here!r})

def note(name, text):
    with open(f"{{STATE}}/{{name}}", "a") as file:
        file.write(text + "\\n")

def known():
    try:
        return open(f"{{STATE}}/images").read().splitlines()
    except OSError:
        return []

def pull(name):
    note("pulls", name)
    time.sleep(0.2)
    if "absent" in name:
        sys.exit(f"Error response from daemon: manifest for {{name}} not found")
    note("images", name)

def ask(message, fds=()):
    line = socket.socket(socket.AF_UNIX)
    line.connect(f"{{STATE}}/socket")
    socket.send_fds(line, [json.dumps(message).encode() + b"\\n"], fds)
    return line

def mounts_of(texts):
    found = []
    for text in texts:
        fields = next(csv.reader([text]))
        pairs = dict(field.partition("=")[::2] for field in fields)
        assert pairs.pop("type") == "bind" and set(pairs) <= {{"source", "destination", "ro"}}, text
        found.append((pairs["source"], pairs["destination"], "ro" in pairs))
    return found

parser = argparse.ArgumentParser(allow_abbrev=False)
commands = parser.add_subparsers(dest="command", required=True)
if KIND == "apptainer":
    run = commands.add_parser("exec", allow_abbrev=False)
    run.add_argument("--cleanenv", action="store_true", required=True)
    run.add_argument("--home")
    run.add_argument("--pwd", dest="workdir")
    run.add_argument("--nv", action="store_true")
    one = commands.add_parser("pull", allow_abbrev=False)
    one.add_argument("--force", action="store_true")
    one.add_argument("file")
else:
    run = commands.add_parser("run", allow_abbrev=False)
    for flag in ("--rm", "--interactive"):
        run.add_argument(flag, action="store_true", required=True)
    for name in ("name", "label", "user", "workdir", "memory", "memory-swap", "entrypoint"):
        run.add_argument("--" + name)
    run.add_argument("--env", action="append", default=[])
    if KIND == "podman":
        run.add_argument("--security-opt", choices=["label=disable"])
        run.add_argument("--device", action="append", default=[])
    else:
        run.add_argument("--gpus")
    image = commands.add_parser("image").add_subparsers(dest="what", required=True)
    inspect = image.add_parser("inspect")
    inspect.add_argument("--format")
    inspect.add_argument("image")
    one = commands.add_parser("pull")
    gone = commands.add_parser("rm", allow_abbrev=False)
    gone.add_argument("--force", action="store_true", required=True)
    if KIND == "podman":
        gone.add_argument("--time", type=int)
        gone.add_argument("--ignore", action="store_true")
    gone.add_argument("names", nargs="+")
    listed = commands.add_parser("ps", allow_abbrev=False)
    listed.add_argument("--all", action="store_true")
    listed.add_argument("--filter")
    listed.add_argument("--format")
one.add_argument("uri")
run.add_argument("--mount", action="append", default=[])
run.add_argument("image")
run.add_argument("argv", nargs=argparse.REMAINDER)
given = parser.parse_args()
note("commands", shlex.join(sys.argv[1:]))

if given.command == "exec":
    from container_runtimes import root_script
    if not os.path.exists(given.image):
        print("FATAL:   could not open image", given.image, file=sys.stderr)
        sys.exit(255)
    begin = "APPTAINERENV_"
    env = {{n[len(begin):]: v for n, v in os.environ.items() if n.startswith(begin)}}
    env = {{"PATH": "/usr/bin:/bin", "HOME": given.home, **env}}
    words = root_script(mounts_of(given.mount), given.workdir, given.argv)
    os.execve(words[0], words, env)
elif given.command == "run":
    if given.image not in known():
        print("Unable to find image", given.image, file=sys.stderr)
        sys.exit(125)
    env = {{"PATH": "/usr/bin:/bin"}}
    for entry in given.env:
        name, sign, value = entry.partition("=")
        env[name] = value if sign else os.environ[name]
    line = ask(
        {{"run": given.name, "argv": [given.entrypoint, *given.argv], "env": env,
          "mounts": mounts_of(given.mount), "workdir": given.workdir}}, (0, 1, 2),
    )
    signal.signal(signal.SIGTERM, lambda *_: line.send(b"TERM\\n"))
    sys.exit(int(line.makefile().readline() or 125))
elif given.command == "pull":
    pull(given.uri)
    if KIND == "apptainer":
        open(given.file, "w").close()
elif given.command == "image":
    sys.exit(given.image not in known())
elif given.command == "rm":
    ask({{"remove": given.names}}).makefile().readline()
elif given.command == "ps":
    print(ask({{"list": True}}).makefile().readline().replace(",", "\\n"), end="")
"""


def root_script(
    mounts: list[tuple[str, str, bool]], folder: str, argv: list[str]
) -> tuple[str, ...]:
    """Return a command that runs a program in a root with what is mounted and no more."""
    lines = ["set -e", "R=$(mktemp -d)", "mount -t tmpfs none $R", "mkdir -p $R/tmp"]
    for name in ("bin", "sbin", "lib", "lib64", "usr", "etc", "dev", "proc"):
        path = f"/{name}"
        if os.path.islink(path):
            lines.append(f"ln -s {shlex.quote(os.readlink(path))} $R{path}")
        elif os.path.isdir(path):
            lines.append(f"mkdir $R{path}; mount --rbind {path} $R{path}")
    for source, target, read_only in mounts:
        to, parent = f"$R{shlex.quote(target)}", f"$R{shlex.quote(os.path.dirname(target))}"
        make = f"mkdir -p {to}" if os.path.isdir(source) else f"mkdir -p {parent}; : >> {to}"
        lines.append(f"{make}; mount --bind {shlex.quote(source)} {to}")
        lines += [f"mount -o remount,bind,ro {to}"] * read_only
    enter = 'cd "$0" && exec "$@"'
    words = shlex.join([folder, *argv])
    lines.append(f"exec chroot $R /bin/sh -c {shlex.quote(enter)} {words}")
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    # With a path of its own, since the program may have any.
    start = "P=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin; " + "\n".join(lines[:-1])
    script = f"{start}\nPATH=$P exec /usr/sbin/{lines[-1].removeprefix('exec ')}"
    return ("/usr/bin/unshare", *own, "--mount", "/bin/sh", "-c", script)


class StandIn:
    """
    A stand-in for a runtime, as a program in a folder.

    Parameters
    ----------
    folder
        Where the program ``bin/KIND`` and its state are put.
    kind
        Name of the runtime.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.state, self.bin = kind, folder / kind, folder / "bin"
        self.state.mkdir()
        self.bin.mkdir(exist_ok=True)
        program = self.bin / kind
        program.write_text(
            CLIENT.format(
                python=sys.executable,
                kind=kind,
                state=str(self.state),
                here=os.path.dirname(__file__),
            )
        )
        program.chmod(0o755)
        self._containers: dict[str, subprocess.Popen[bytes]] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.state / "socket"))
        self._server.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    image = "box:1"

    def add_image(self) -> None:
        """Have the image without a pull."""
        self._note("images", "box:1")
        self._note("images", "docker.io/library/box:1")

    def lines(self, name: str) -> list[str]:
        """Return what was noted: ``pulls`` or ``commands``."""
        path = self.state / name
        return path.read_text().splitlines() if path.exists() else []

    def running(self) -> list[str]:
        """Return names of the containers that there are."""
        return list(self._containers)

    def remove(self, name: str) -> None:
        """End a container."""
        process = self._containers.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End all containers and the service."""
        for name in self.running():
            self.remove(name)
        self._server.close()

    def _note(self, name: str, text: str) -> None:
        with (self.state / name).open("a") as file:
            file.write(text + "\n")

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        data, fds, _, _ = socket.recv_fds(line, 1 << 20, 3)
        while not data.endswith(b"\n"):
            data += line.recv(1 << 20)
        asked = json.loads(data)
        if "list" in asked:
            line.sendall((",".join(self.running()) + "\n").encode())
        elif "remove" in asked:
            for name in asked["remove"]:
                self.remove(name)
            line.sendall(b"\n")
        else:
            self._run(line, asked, fds)
        line.close()

    def _run(self, line: socket.socket, asked: dict[str, Any], fds: list[int]) -> None:
        process = subprocess.Popen(
            root_script(asked["mounts"], asked["workdir"], asked["argv"]),
            env=asked["env"],
            stdin=fds[0],
            stdout=fds[1],
            stderr=fds[2],
            start_new_session=True,
        )
        for fd in fds:
            os.close(fd)
        self._containers[asked["run"]] = process

        def signals() -> None:
            with contextlib.suppress(OSError):
                while line.recv(100):
                    os.killpg(process.pid, signal.SIGTERM)

        threading.Thread(target=signals, daemon=True).start()
        code = process.wait()
        self._containers.pop(asked["run"], None)
        with contextlib.suppress(OSError):  # whoever asked has ended
            line.sendall(b"%d\n" % (code if code >= 0 else 128 - code))


class RealRuntime:
    """A real runtime of this machine, with an image that is made of one static program."""

    image = "bursar-test:1"

    def __init__(self, program: str, kind: str) -> None:
        self.program, self.kind = program, kind

    def running(self) -> list[str]:
        """Return names of the containers that there are."""
        words = [self.program, "ps", "--all", "--filter", "label=bursar", "--format", "{{.Names}}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()

    def close(self) -> None:
        """Leave it as it is."""


def real_runtime(kind: str, folder: Path) -> RealRuntime | None:
    """Return a real runtime with its image; None where there is none that works."""
    program, busybox = shutil.which(kind), Path("/bin/busybox")
    if program is None or not busybox.exists():
        return None
    binaries = folder / "root" / "bin"
    binaries.mkdir(parents=True)
    shutil.copy(busybox, binaries)
    for name in ("sh", "cat", "echo", "id", "env", "sleep", "true", "head", "tr", "test", "touch"):
        (binaries / name).symlink_to("busybox")
    ask: Callable[..., Any] = subprocess.run
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        archive = folder / "image.tar"
        ask(["tar", "-C", str(folder / "root"), "-cf", str(archive), "."], check=True)
        more: dict[str, Any] = {"capture_output": True, "check": True, "timeout": 60}
        ask([program, "import", str(archive), RealRuntime.image], **more)
        ask([program, "run", "--rm", RealRuntime.image, "/bin/true"], **more)
        return RealRuntime(program, kind)
    return None
