import inspect
import pkgutil

import pytest

import headway
from headway import kernels


@pytest.mark.parametrize("module", [headway, kernels], ids=lambda module: module.__name__)
def test_all_is_exact(module):
    submodules = {name for _, name, _ in pkgutil.iter_modules(module.__path__)}
    public = {name for name in vars(module) if not name.startswith("_")} - submodules
    public |= {name for name in module.__all__ if name.startswith("__")}
    public |= {name for name in module.__all__ if inspect.ismodule(getattr(module, name))}
    assert set(module.__all__) == public


def test_no_name_is_both_a_module_and_something_else():
    for name in kernels.__all__:
        assert name not in {module for _, module, _ in pkgutil.iter_modules(kernels.__path__)}
