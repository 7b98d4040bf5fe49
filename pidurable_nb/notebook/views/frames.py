"""Owns the data frame among the tables. The only module of the notebook that imports pandas: `tables` asks for it late.

Never knows what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from pidurable_nb.notebook.views.markup import View
from pidurable_nb.notebook.views.tables import Table


class Framed(Table, pd.DataFrame):
    """A data frame with a form of its own. Whatever is derived from it is an ordinary one."""

    _metadata = ["view"]

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame


def framed(view: View, columns: Sequence[str], records: Sequence[Mapping[str, object]]) -> Framed:
    """The data frame of `records`, shown as `view`."""
    made = Framed(list(records), columns=list(columns))
    made.view = view
    return made
