"""The pictures of the README, as `make pictures` takes them: from the tour in a real JupyterLab, and from a real sweep.

Writes into `notebooks/images`, with `pictures.json` beside them, which says what was on them: a test compares that with
what the product says today, so that no picture stays when its words have changed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from pidurable_nb.lab.scenario import builtin
from pidurable_nb.lab.sweeping.sweep import sweep
from pidurable_nb.notebook.server import labserver
from tests.browser.conftest import FLAGS, chromium_of
from tests.browser.driving import SHOW_LAB, Lab, desk_in, jupyterlab

IMAGES: Final = Path(__file__).resolve().parents[1] / "notebooks" / "images"
VERB: Final = "interrupt"
"""The step that is pictured: the refund is not run again, and the model is told."""


def lab_pictures(own: Path) -> dict[str, str]:
    """The Lab of the tour at that step, light and dark; returns what stands on them."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_of(playwright), args=list(FLAGS))
        with jupyterlab(own) as server, desk_in(browser, server, width=1320, height=2000, scale=1.5) as desk:
            desk.open(labserver.TOUR)
            desk.command("application:toggle-left-area")
            desk.run_all()
            desk.page.evaluate(SHOW_LAB)
            lab = desk.lab()
            lab.key("next").focus()
            while lab.said()["verb"] != VERB:
                lab.step()
            for theme in ("dark", "light"):
                desk.dark(theme == "dark")
                picture(lab, IMAGES / f"lab-{theme}.png")
            said = lab.said()
        browser.close()
    return said


def picture(lab: Lab, path: Path) -> None:
    """The lab alone, with nothing that moves or has the focus."""
    lab.desk.page.mouse.move(0, 0)
    lab.desk.page.evaluate("() => document.activeElement.blur()")
    lab.root.screenshot(path=path, animations="disabled")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as own:
        said = lab_pictures(Path(own))
    found = sweep(builtin("two-orders"))
    (IMAGES / "sweep.svg").write_text(found.picture(), encoding="utf-8")
    shown = {"lab": said, "sweep": dict(found.classes)}
    (IMAGES / "pictures.json").write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
