"""A page of a browser in which labs are tried: what a test does to it, and what it did that no page of ours may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from playwright.sync_api import Page


@dataclass
class Seat:
    """A page, and what it did that no page of ours may do."""

    page: Page
    wrong: list[str] = field(default_factory=list)

    def start(self, **options: object) -> float:
        """Put a lab on the page; milliseconds until it stands there."""
        took: float = self.page.evaluate("options => lab.start(options)", options)
        return took

    def text(self, selector: str) -> str:
        """What stands there, as a person reads it."""
        return self.page.locator(selector).first.inner_text()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def focused(self) -> str:
        """The key of what has the focus."""
        found: str = self.page.evaluate("document.activeElement?.dataset?.k ?? ''")
        return found

    def sent(self, kernel: int = 0) -> list[dict[str, object]]:
        """What the page asked a kernel for, without its greetings."""
        found: list[dict[str, object]] = self.page.evaluate("n => lab.kernels[n].sent", kernel)
        return [message for message in found if message["do"] != "hello"]

    def presses(self, kernel: int = 0) -> list[object]:
        """What was pressed, in order."""
        return [message["do"] for message in self.sent(kernel) if message["do"] != "entries"]

    def nodes(self) -> int:
        """How many nodes there are in the transcript, texts included."""
        found: int = self.page.evaluate(
            """() => {
                const walker = document.createTreeWalker(document.querySelector(".pi-lab .tr"), NodeFilter.SHOW_ALL);
                let count = 0;
                while (walker.nextNode()) count++;
                return count;
            }"""
        )
        return found


class Seats(Protocol):
    """Makes pages, by width, theme, motion and forced colours."""

    def __call__(self, *, width: int = 1280, dark: bool = False, still: bool = False, forced: bool = False) -> Seat: ...
