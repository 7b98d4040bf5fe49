"""The public names of the room: each exists, and brings no more than it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pidurable_nb.tools


def loaded(program: str) -> set[str]:
    whole = f"import json, sys\n{program}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_every_name_exists() -> None:
    assert [name for name in pidurable_nb.tools.__all__ if not hasattr(pidurable_nb.tools, name)] == []
    assert set(pidurable_nb.tools.__all__) <= set(dir(pidurable_nb.tools))
    assert not hasattr(pidurable_nb.tools, "no_such_name")


def test_importing_the_room_loads_neither_pydantic_nor_its_other_modules() -> None:
    found = loaded("import pidurable_nb.tools")
    assert "pydantic" not in found
    assert {f"pidurable_nb.tools.{name}" for name in ("local", "coding", "bounds", "signature")} & found == set()
    every = loaded("import pidurable_nb.tools as t; [getattr(t, name) for name in t.__all__]")
    assert "pydantic" not in every


def test_the_decorator_stays_when_its_module_was_imported_first() -> None:
    loaded("import pidurable_nb.tools.tool\nfrom pidurable_nb.tools import tool\nassert callable(tool)")
    loaded("from pidurable_nb.tools.tool import Tool\nfrom pidurable_nb.tools import tool\nassert callable(tool)")
