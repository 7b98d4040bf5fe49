"""Owns a JupyterLab of our own: a working folder with copies of tour and lessons, its port and token, start and end.

It listens on the loopback address only, asks no news server, and leaves the user's own Jupyter settings as they are:
ours come from a configuration folder that only this server sees. Never runs a cell.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

import httpx

import pidurable_nb
from pidurable_nb.errors import PidurableError
from pidurable_nb.notebook.views.comforts import EXTRA

TOUR: Final = "00_tour.ipynb"
NEEDED: Final = ("jupyterlab", "ipykernel", "pandas", "graphviz", "anywidget")
START_S: Final = 60.0
STOP_S: Final = 10.0
TRIES: Final = 5

OVERRIDES: Final = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}
"""Defaults of this server. What somebody chose in their own settings still wins over them."""


class NotebookExtraMissing(PidurableError):
    """JupyterLab, or what the views need, is not installed."""


class TourMissing(PidurableError):
    """The tour is not where an installation or a checkout has it."""


class LabFailed(PidurableError):
    """JupyterLab did not start, or ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A running JupyterLab."""

    process: subprocess.Popen[bytes]
    base: str
    token: str
    folder: Path
    tour: Path

    @property
    def url(self) -> str:
        """The address that opens the tour, with its token."""
        return f"{self.base}/lab/tree/{quote(self.tour.name)}?token={self.token}"


def check_installed() -> None:
    """Raise NotebookExtraMissing, in one line, when the `notebook` extra is not there."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotebookExtraMissing(f"the notebook needs {', '.join(missing)}, not installed here: {EXTRA}")


def find_tour() -> Path:
    """The tour as it was shipped. Raises TourMissing."""
    package = Path(pidurable_nb.__file__).parent
    places = [package / "notebooks" / TOUR, package.parent / "notebooks" / TOUR]
    for place in places:
        if place.is_file():
            return place
    raise TourMissing(f"there is no {TOUR} in {places[0].parent} or {places[1].parent}: install pidurable-nb again")


def lay_out(folder: Path) -> Path:
    """A copy of the tour, and of the lessons beside it. One that is there already is somebody's work, and is kept."""
    shipped = find_tour()
    folder.mkdir(parents=True, exist_ok=True)
    for notebook in sorted(shipped.parent.glob("[0-9][0-9]_*.ipynb")):
        if not (folder / notebook.name).exists():
            shutil.copyfile(notebook, folder / notebook.name)
    return folder / TOUR


def has_display() -> bool:
    """Whether a browser could show a window here."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextlib.contextmanager
def lab(folder: Path) -> Generator[Lab]:
    """A JupyterLab on a copy of the tour in `folder`, until the block ends.

    Raises: NotebookExtraMissing, TourMissing, LabFailed with the last words of the server.
    """
    check_installed()
    tour = lay_out(folder)
    with tempfile.TemporaryDirectory(prefix="pidurable-lab-") as own:
        _write_overrides(Path(own))
        with (Path(own) / "lab.log").open("w+b") as log:
            running = _start(folder, tour, Path(own), log)
            try:
                yield running
            finally:
                _stop(running.process)


# --- The process ----------------------------------------------------------------------------------------------------


def _write_overrides(own: Path) -> None:
    settings = own / "labconfig"
    settings.mkdir()
    (settings / "default_setting_overrides.json").write_text(json.dumps(OVERRIDES), encoding="utf-8")


def _start(folder: Path, tour: Path, own: Path, log: IO[bytes]) -> Lab:
    said = "it gave no reason"
    for _ in range(TRIES):  # another process may take the port first
        token, port = secrets.token_urlsafe(24), _free_port()
        process = subprocess.Popen(
            _command(folder, port),
            env=_environment(own, token),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # an interrupt typed here is for us; we then end it in order
        )
        running = Lab(process=process, base=f"http://127.0.0.1:{port}", token=token, folder=folder, tour=tour)
        try:
            if _answers(running):
                return running
        except BaseException:
            _stop(process)
            raise
        _stop(process)
        said = _last_words(log)
        if "already in use" not in said:
            break
    raise LabFailed(f"JupyterLab did not start: {said}")


def _command(folder: Path, port: int) -> Sequence[str]:
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": str(port),
        "ServerApp.port_retries": "0",
        "ServerApp.base_url": "/",
        "ServerApp.certfile": "",
        "ServerApp.root_dir": str(folder),
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    return [*command, *(f"--{name}={value}" for name, value in options.items())]


def _environment(own: Path, token: str) -> Mapping[str, str]:
    before = os.environ.get("JUPYTER_CONFIG_PATH")
    return {
        **os.environ,
        "JUPYTER_CONFIG_PATH": os.pathsep.join([str(own), *([before] if before else [])]),
        "JUPYTER_TOKEN": token,  # not among the arguments, where every user of the machine can read it
        "JUPYTER_PREFER_ENV_PATH": "1",  # the kernel of the environment that pidurable_nb is installed in
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(running: Lab) -> bool:
    """Wait until the server is up. False when it ended instead, or when somebody else answers on its port."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if running.process.poll() is not None:
            return False
        try:
            answer = httpx.get(
                f"{running.base}/api/status", headers=authorization(running), timeout=2.0, trust_env=False
            )
        except httpx.HTTPError:
            time.sleep(0.1)
            continue
        if answer.status_code == httpx.codes.OK:
            return True
        time.sleep(0.1)
    return False


def authorization(running: Lab) -> dict[str, str]:
    """The header that the server's interface wants."""
    return {"Authorization": f"token {running.token}"}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the kernels that it started."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"
