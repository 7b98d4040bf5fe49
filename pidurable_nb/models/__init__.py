"""What answers: the protocol of a model, and models that speak it.

Owns the names that users import; holds no code of its own, and loads a model's module when the model is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pidurable_nb import names_of

if TYPE_CHECKING:
    from pidurable_nb.models.anthropic import Anthropic
    from pidurable_nb.models.model import (
        ArgumentsDelta,
        CallStart,
        DeferringModel,
        Finished,
        Model,
        ModelEvent,
        ModelRef,
        ModelRequest,
        TextDelta,
        Thinking,
        ThinkingDelta,
    )
    from pidurable_nb.models.openai import OpenAI
    from pidurable_nb.models.script import (
        Answer,
        Attempts,
        Break,
        CallTools,
        Defer,
        PlannedCall,
        Raise,
        Say,
        call,
    )
    from pidurable_nb.models.scripted import Scripted

__all__ = [
    "Model",
    "DeferringModel",
    "ModelRef",
    "ModelRequest",
    "Thinking",
    "ModelEvent",
    "TextDelta",
    "ThinkingDelta",
    "CallStart",
    "ArgumentsDelta",
    "Finished",
    "Scripted",
    "Answer",
    "Say",
    "CallTools",
    "call",
    "PlannedCall",
    "Break",
    "Raise",
    "Defer",
    "Attempts",
    "OpenAI",
    "Anthropic",
]

_MODEL = "pidurable_nb.models.model"
_SCRIPT = "pidurable_nb.models.script"
_ROOMS = {
    **dict.fromkeys(("Model", "DeferringModel", "ModelRef", "ModelRequest", "Thinking", "ModelEvent"), _MODEL),
    **dict.fromkeys(("TextDelta", "ThinkingDelta", "CallStart", "ArgumentsDelta", "Finished"), _MODEL),
    **dict.fromkeys(("Answer", "Say", "CallTools", "call", "PlannedCall", "Break"), _SCRIPT),
    **dict.fromkeys(("Raise", "Defer", "Attempts"), _SCRIPT),
    "Scripted": "pidurable_nb.models.scripted",
    "OpenAI": "pidurable_nb.models.openai",
    "Anthropic": "pidurable_nb.models.anthropic",
}
"""Where each name lives."""

__getattr__, __dir__ = names_of(__name__, _ROOMS)
