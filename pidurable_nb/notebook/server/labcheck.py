"""Owns running a notebook once through a Jupyter server, as a browser would, and saying which cell failed.

It reads the notebook, starts a session and talks to its kernel through the server's own interface. Never writes the
notebook.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from pidurable_nb.errors import PidurableError
from pidurable_nb.ids import Json
from pidurable_nb.notebook.server.labserver import Lab, authorization


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """How a notebook ran. `failure` names the cell and the error, None when all cells ran."""

    cells: int
    seconds: float
    failure: str | None


class CheckFailed(PidurableError):
    """The server or the kernel did not answer as a Jupyter server does."""


def run_through(running: Lab, *, timeout_s: float, progress: Callable[[str], None]) -> Checked:
    """Run every code cell of the tour through the server. Raises CheckFailed."""
    began = time.monotonic()
    try:
        cells, failure = asyncio.run(asyncio.wait_for(_run(running, progress), timeout_s))
    except TimeoutError:
        cells, failure = 0, f"the cells did not end within {timeout_s:.0f} seconds"
    except (httpx.HTTPError, OSError) as error:
        raise CheckFailed(f"the server did not answer: {error!r}") from error
    return Checked(cells=cells, seconds=time.monotonic() - began, failure=failure)


async def _run(running: Lab, progress: Callable[[str], None]) -> tuple[int, str | None]:
    async with httpx.AsyncClient(
        base_url=running.base, headers=authorization(running), timeout=30.0, trust_env=False
    ) as server:
        sources = await _sources(server, running.tour.name)
        session = await _session(server, running.tour.name)
        try:
            kernel = await _connect(running, session.kernel)
            try:
                for n, source in enumerate(sources, 1):
                    progress(f"cell {n} of {len(sources)}")
                    failure = await _execute(kernel, source)
                    if failure is not None:
                        return n, f"cell {n}: {failure}"
            finally:
                kernel.close()
        finally:
            await server.delete(f"/api/sessions/{session.id}")
    return len(sources), None


@dataclass(frozen=True, slots=True)
class _Session:
    id: str
    kernel: str


async def _sources(server: httpx.AsyncClient, name: str) -> Sequence[str]:
    answer = await server.get(f"/api/contents/{name}", params={"content": "1", "type": "notebook"})
    match answer.raise_for_status().json():
        case {"content": {"cells": list(cells)}}:
            return [
                cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
                for cell in cells
                if cell["cell_type"] == "code"
            ]
        case _:
            raise CheckFailed(f"the server has no notebook {name}")


async def _session(server: httpx.AsyncClient, name: str) -> _Session:
    asked = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
    answer = await server.post("/api/sessions", json=asked)
    match answer.raise_for_status().json():
        case {"id": str(id), "kernel": {"id": str(kernel)}}:
            return _Session(id, kernel)
        case _:
            raise CheckFailed("the server started no kernel")


async def _connect(running: Lab, kernel: str) -> WebSocketClientConnection:
    address = f"{running.base.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels"
    return await websocket_connect(
        HTTPRequest(address, headers=authorization(running), connect_timeout=30.0), max_message_size=256 << 20
    )


async def _execute(kernel: WebSocketClientConnection, source: str) -> str | None:
    """Run one cell; the error that it ended with, in one line, or None."""
    id = uuid.uuid4().hex
    await kernel.write_message(json.dumps(_request(id, source)))
    failure: str | None = None
    replied = idle = False
    while not (replied and idle):
        text = await kernel.read_message()
        if text is None:
            return "the kernel's connection was closed"
        match json.loads(text):
            case {"parent_header": {"msg_id": parent}, "msg_type": str(kind), "content": dict(content)} if parent == id:
                if kind == "error":
                    failure = f"{content.get('ename')}: {content.get('evalue')}"
                elif kind == "execute_reply":
                    replied = True
                    if content.get("status") != "ok" and failure is None:
                        failure = f"{content.get('ename')}: {content.get('evalue')}"
                elif kind == "status":
                    idle = idle or content.get("execution_state") == "idle"
            case _:
                continue
    return None if failure is None else " ".join(failure.split())[:500]


def _request(id: str, source: str) -> Mapping[str, Json]:
    return {
        "channel": "shell",
        "header": {
            "msg_id": id, "msg_type": "execute_request", "username": "check", "session": "check", "date": "",
            "version": "5.3",
        },
        "parent_header": {},
        "metadata": {},
        "content": {
            "code": source, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False,
            "stop_on_error": True,
        },
        "buffers": [],
    }  # fmt: skip
