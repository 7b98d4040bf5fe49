"""Owns the study store of the learner: predictions, reveals and notes, as entries of a store of this very product.

Every answer opens the store, writes one entry and closes it again, because one process owns a store (F5) and two
notebooks are to work side by side. Looking reads a copy and owns nothing. Never renders, and never grades.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

from pidurable_nb.agent.conversation import Conversation
from pidurable_nb.agent.harness import Harness
from pidurable_nb.errors import NotAStore, PidurableError, StorageRequestError, StoreBusy, StoreOwned, StoreRefused
from pidurable_nb.ids import ROOT, Json, JsonObject
from pidurable_nb.notebook.kernel.host import Host
from pidurable_nb.notebook.study.scores import Answer, Note
from pidurable_nb.records.transcript import EntryRecord, Written
from pidurable_nb.store.copying import named
from pidurable_nb.store.ownership import StoreLock
from pidurable_nb.store.stranger import StoreFile

T = TypeVar("T")
Kind = Literal["study.prediction", "study.reveal", "study.belief"]

PATH: Final = "PIDURABLE_NB_STUDY"
"""The environment variable that names another study store."""
PATIENCE_S: Final = 5.0
"""How long an answer waits for another notebook, which has the store open for some milliseconds."""
PAGE: Final = 500
SIDE_FILES: Final = ("", "-wal", "-shm")


def study_path() -> Path:
    """Where the learner's answers are: `$PIDURABLE_NB_STUDY`, else the user's data folder of this platform."""
    named_by_user = os.environ.get(PATH, "")
    if named_by_user:
        return Path(named_by_user).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "pidurable_nb" / "study.sqlite"
    data = os.environ.get("XDG_DATA_HOME", "")
    # A relative XDG_DATA_HOME is to be ignored: it would be another folder in every notebook.
    base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "pidurable_nb" / "study.sqlite"


class NotLocked(PidurableError):
    """Nothing is predicted under this key, so nothing is revealed or noted: lock an answer first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is stored now, and whether this very call stored it (S1). `same`: an earlier one had said the same."""

    answer: Answer
    new: bool
    same: bool = True


class Study:
    """The study store, closed between two answers. Writing runs on the host's loop, looking where it is called."""

    def __init__(self, host: Host, path: Path | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self.host = host
        self.path = path if path is not None else study_path()
        self._patience_s = patience_s

    # -- looking -----------------------------------------------------------------------------------------------------

    def answers(self) -> Mapping[str, Answer]:
        """Every answer by its key, oldest first. Not a byte of the store changes.

        Raises StoreRefused when there is something else, StoreOwned when others keep it busy.
        """
        if not self.path.exists():
            return {}
        try:
            with StoreFile.open(self.path) as file:
                return answers_of(file.entries(ROOT))
        except (NotAStore, StoreBusy):
            # Another notebook is just making it, or its maker was killed at that. Opening repairs it, or says why not.
            return self.host.call(self._owned(_answers))

    def find(self, key: str) -> Answer | None:
        """The answer of that key. Raises as `answers`."""
        return self.answers().get(key)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def lock(self, answer: Answer) -> Kept:
        """Store a prediction, once for its key: whoever comes later is given the first one (S1).

        Durability: stored on return, behind a barrier (E5).
        Raises StoreOwned when another process keeps the store open, StoreRefused, SessionFailed.
        """
        data: dict[str, Json] = {
            "key": answer.key, "notebook": answer.notebook, "id": answer.id, "question": answer.question,
            "choices": list(answer.choices), "choice": answer.choice, "confidence": answer.confidence,
            "beliefs": list(answer.beliefs),
        }  # fmt: skip
        if answer.seed is not None:
            data["seed"] = answer.seed
        text = f"{answer.notebook}/{answer.id}: predicted {answer.predicted!r} at {answer.percent} %"
        return await self._keep("study.prediction", answer.key, data, text, request_id=answer.key)

    async def reveal(self, key: str, happened: str, because: str) -> Kept:
        """Store what happened, once for a prediction: the first reveal counts.

        Durability: stored on return, behind a barrier (E5). Raises NotLocked, and as `lock`; nothing is stored then.
        """
        data: dict[str, Json] = {"key": key, "happened": happened, "because": because}
        request_id = key.replace("predict/", "reveal/", 1)
        return await self._keep("study.reveal", key, data, f"happened: {happened!r}", request_id=request_id)

    async def note(self, key: str, belief: str, sentence: str) -> Kept:
        """Store which belief led to a prediction. The same sentence twice is one entry.

        Durability: stored on return, behind a barrier (E5). Raises NotLocked, and as `lock`; nothing is stored then.
        """
        data: dict[str, Json] = {"key": key, "belief": belief, "sentence": sentence}
        digest = hashlib.sha256(f"{belief}\n{sentence}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        request_id = f"{key.replace('predict/', 'belief/', 1)}/{digest}"
        return await self._keep("study.belief", key, data, f"{belief}: {sentence}", request_id=request_id)

    def reset(self) -> bool:
        """Remove the store with every answer in it, while nobody has it open. False when there was none.

        Raises StoreOwned, StoreRefused.
        """
        if not self.path.exists():
            return False
        with StoreFile.open(self.path):
            pass  # whatever else has this name is refused, and stays
        lock = StoreLock(self.path)
        try:
            for side in SIDE_FILES:
                self.path.with_name(self.path.name + side).unlink(missing_ok=True)
        finally:
            lock.release()
        return True

    async def _keep(self, kind: Kind, key: str, data: JsonObject, text: str, *, request_id: str) -> Kept:
        async def write(root: Conversation) -> Kept:
            # A reveal that came before its prediction would count as the first one, and be of none.
            if kind != "study.prediction" and key not in await _answers(root):
                raise NotLocked(f"{key.removeprefix('predict/')} is not locked yet; lock an answer, then do this again")
            submission = await root.write(kind, text=text, data=data, request_id=request_id)
            record = await submission.record()
            if not isinstance(record.state, Written):
                raise StorageRequestError(
                    f"{named(self.path)} is busy with a run of an agent; open it with %pi open, let that end, try again"
                )
            found = (await _answers(root)).get(key)
            if found is None:
                raise StorageRequestError(
                    f"{named(self.path)} holds something else under {request_id}; name another store in ${PATH}"
                )
            return Kept(answer=found, new=submission.match == "new", same=submission.match in ("new", "same"))

        return await self._owned(write)

    async def _owned(self, work: Callable[[Conversation], Awaitable[T]]) -> T:
        """Open, work, close; where another notebook has it open, try again for a moment. Nothing in it is started."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreRefused(
                f"{named(self.path)} cannot be made ({error.strerror}); name another store in ${PATH}", path=self.path
            ) from error
        clock = asyncio.get_running_loop()
        until = clock.time() + self._patience_s
        while True:
            try:
                async with Harness.open(self.path, run=False) as harness:
                    return await work(await harness.root())
            except StoreOwned as owned:
                if clock.time() >= until:
                    raise self._in_use(owned) from owned
            await asyncio.sleep(random.uniform(0.01, 0.06))  # not in step with the other one

    def _in_use(self, owned: StoreOwned) -> StoreOwned:
        if owned.pid == os.getpid():
            who, where = "this kernel", "here"
        else:
            who = "another process" if owned.pid is None else f"process {owned.pid}"
            who, where = who + (f" on {owned.host}" if owned.host else ""), "there"
        return StoreOwned(
            f"your answers are kept in {named(self.path)}, and {who} keeps it open; close it {where} (%pi close), "
            "then do this again. Nothing was stored",
            path=self.path, pid=owned.pid, host=owned.host, since=owned.since,
        )  # fmt: skip


# --- Entries --------------------------------------------------------------------------------------------------------


async def _answers(root: Conversation) -> Mapping[str, Answer]:
    entries: list[EntryRecord] = []
    page = await root.entries(limit=PAGE, order="ascending")
    entries += page.items
    while page.next is not None:
        page = await root.entries(limit=PAGE, order="ascending", after=page.next)
        entries += page.items
    return answers_of(entries)


def answers_of(entries: Iterable[EntryRecord]) -> Mapping[str, Answer]:
    """The answers that entries say, oldest first. The first of a kind counts; what has another shape is no answer."""
    found: dict[str, Answer] = {}
    for entry in entries:
        data = entry.data
        if not isinstance(data, Mapping) or not isinstance(key := data.get("key"), str):
            continue
        if entry.kind == "study.prediction" and key not in found:
            read = _prediction(key, data, entry)
            if read is not None:
                found[key] = read
        elif key in found:
            found[key] = _grown(found[key], entry.kind, data)
    return found


def _prediction(key: str, data: JsonObject, entry: EntryRecord) -> Answer | None:
    match data:
        case {
            "notebook": str(notebook), "id": str(id), "question": str(question),
            "choice": int(choice), "confidence": int() | float() as confidence,
        }:  # fmt: skip
            choices = _strings(data.get("choices"))
            if isinstance(choice, bool) or not 1 <= choice <= len(choices) or not 0.5 <= confidence <= 1:
                return None
        case _:
            return None
    seed = data.get("seed")
    return Answer(
        key=key, notebook=notebook, id=id, seed=seed if isinstance(seed, str) else None, question=question,
        choices=choices, choice=choice, confidence=float(confidence), beliefs=_strings(data.get("beliefs")),
        at_ms=_at_ms(entry),
    )  # fmt: skip


def _grown(answer: Answer, kind: str, data: JsonObject) -> Answer:
    """The answer with what came after it."""
    match data:
        case {"happened": str(happened)} if kind == "study.reveal" and answer.happened is None:
            because = data.get("because")
            return replace(answer, happened=happened, because=because if isinstance(because, str) else "")
        case {"belief": str(belief), "sentence": str(sentence)} if kind == "study.belief":
            return replace(answer, notes=(*answer.notes, Note(belief=belief, sentence=sentence)))
        case _:
            return answer


def _strings(value: Json) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        return ()
    return tuple(one for one in value if isinstance(one, str))


def _at_ms(entry: EntryRecord) -> int | None:
    """When it was written: the time of its message."""
    at = entry.model[0].get("timestamp") if entry.model else None
    return at if isinstance(at, int) and not isinstance(at, bool) else None
