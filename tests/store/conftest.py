"""What several tests of this room use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pidurable_nb.lab.dying.vfs import FileOp, RecordingVfs


@pytest.fixture
def watched() -> Iterator[Callable[..., RecordingVfs]]:
    """Makes recording VFS objects and takes them from SQLite in the end."""
    made: list[RecordingVfs] = []

    def make(gate: Callable[[FileOp], int | None] | None = None) -> RecordingVfs:
        made.append(RecordingVfs(gate=gate))
        return made[-1]

    yield make
    free = [vfs.close() for vfs in made]
    assert all(free)
