from __future__ import annotations

import sys
from importlib import import_module

import pytest

import headway


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_missing_framework_is_told_in_one_sentence(monkeypatch, framework):
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"headway.integrations.{framework}", raising=False)
    with pytest.raises(ImportError, match=rf"{framework} cannot be imported .*: pip install 'headway\[{framework}\]'"):
        import_module(f"headway.integrations.{framework}")


def test_there_is_no_other_adapter():
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        headway.integrations.keras  # noqa: B018
