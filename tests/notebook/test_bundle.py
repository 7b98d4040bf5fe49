"""One script of the modules of a page: each once, before who needs it, and nothing left for a browser to load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pidurable_nb.notebook import labview
from pidurable_nb.notebook.views.bundle import bundle

PAGE = Path(labview.__file__).parent / "page"


def test_a_module_stands_once_before_whoever_imports_it(tmp_path: Path) -> None:
    (tmp_path / "low.js").write_text("export const low = 1;\n")
    (tmp_path / "left.js").write_text('import {low} from "./low.js";\n\nexport const left = low + 1;\n')
    (tmp_path / "right.js").write_text('import {low} from "./low.js";\nexport class Right {}\n')
    entry = tmp_path / "top.js"
    entry.write_text(
        'import {left} from "./left.js";\nimport {Right} from "./right.js";\nexport default {left, Right};\n'
    )
    assert [line for line in bundle(entry).splitlines() if line] == [
        "const low = 1;", "const left = low + 1;", "class Right {}", "export default {left, Right};",
    ]  # fmt: skip


def test_a_module_that_is_missing_is_an_error(tmp_path: Path) -> None:
    entry = tmp_path / "top.js"
    entry.write_text('import {gone} from "./gone.js";\n')
    with pytest.raises(FileNotFoundError, match=r"gone\.js"):
        bundle(entry)


def test_the_lab_is_one_script_that_loads_nothing_and_names_everything_once() -> None:
    script = bundle(PAGE / "lab.js")
    assert not re.search(r"\bimport\b *[({\"'*]|\brequire\(|https?://(?!www\.w3\.org/2000/svg)", script)
    names = re.findall(r"^(?:async )?(?:const|let|function|class) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names)) > 60
    assert script.count("export default") == 1
    for path in PAGE.glob("*.js"):
        assert path.read_text().splitlines()[0] in script, f"{path.name} is no part of it"
