"""Owns making one script of the modules of a page: a widget is given a single file, and people want small ones.

Knows of JavaScript only what our own modules use: named imports from beside them, on lines of their own, and names that
are different in all of them. A browser finds any other way wrong at once. Never loads anything from elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_IMPORT: Final = re.compile(r'^import \{[\w, ]+\} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?!default)", re.MULTILINE)


def bundle(entry: Path) -> str:
    """The module `entry` with all that it imports before it, each once. What `entry` exports by default stays.

    Raises: OSError when a module is not there.
    """
    done: list[Path] = []
    parts: list[str] = []

    def add(path: Path) -> None:
        if path in done:
            return
        done.append(path)
        source = path.read_text(encoding="utf-8")
        for match in _IMPORT.finditer(source):
            add(path.parent / match[1])
        parts.append(_EXPORT.sub("", _IMPORT.sub("", source)))

    add(entry)
    return "\n".join(parts)
