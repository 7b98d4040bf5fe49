"""The public names of the room, and that asking for one loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys

from pidurable_nb import models


def loaded_by(program: str) -> set[str]:
    program += "\nimport sys; print(*sorted({'httpx', 'httpx_sse', 'pydantic_core'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_every_public_name_exists() -> None:
    assert [name for name in models.__all__ if not hasattr(models, name)] == []
    assert set(models.__all__) <= set(dir(models))


def test_only_providers_load_http() -> None:
    assert loaded_by("import pidurable_nb.models") == set()
    assert loaded_by("from pidurable_nb.models import Scripted, Say, call; Scripted(Say('x'))") == set()
    assert "httpx" in loaded_by("from pidurable_nb.models import OpenAI")
