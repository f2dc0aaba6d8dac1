"""The files beside the code that a page is made of."""

from __future__ import annotations

from importlib import resources


def asset(name: str) -> str:
    """Return the text of a file of ours."""
    return (resources.files("headway.report.page") / "assets" / name).read_text(encoding="utf-8")
