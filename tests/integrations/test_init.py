from __future__ import annotations

import sys
from importlib import import_module

import pytest

import headway


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_missing_framework_gives_the_command_to_install_it(monkeypatch, framework):
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"headway.integrations.{framework}", raising=False)
    with pytest.raises(ImportError, match=rf"{framework} cannot be imported .*: pip install 'headway\[{framework}\]'"):
        import_module(f"headway.integrations.{framework}")


def test_an_unknown_adapter_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        headway.integrations.keras  # noqa: B018
