"""docs/engine.md says what the tables say. DSLAUNCH_UPDATE_DOCS=1 writes its generated parts anew."""

from __future__ import annotations

import os
from pathlib import Path

from config_page import filled

PAGE = Path(__file__).parents[2] / "docs/engine.md"


def test_the_page_is_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("DSLAUNCH_UPDATE_DOCS"):
        PAGE.write_text(filled(page), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == filled(page)
