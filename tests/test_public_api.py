import inspect
import pkgutil
import subprocess
import sys

import pytest

import headway
from headway import collectives, compress, ddp, exchange, kernels, lab, network, report, tuner


def _submodules(package):
    return {name for _, name, _ in pkgutil.iter_modules(package.__path__)}


@pytest.mark.parametrize(
    "package",
    [collectives, compress, ddp, exchange, kernels, lab, network, report, tuner],
    ids=lambda package: package.__name__,
)
def test_all_of_a_room_is_exact(package):
    public = {name for name in vars(package) if not name.startswith("_")} - _submodules(package)
    assert set(package.__all__) == public


def test_all_of_the_package_is_there():
    for name in headway.__all__:
        value = getattr(headway, name)
        assert inspect.ismodule(value) or inspect.isfunction(value) or isinstance(value, (str, type))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        headway.nothing  # noqa: B018


@pytest.mark.parametrize(
    "package",
    [collectives, compress, ddp, exchange, kernels, lab, network, report, tuner],
    ids=lambda package: package.__name__,
)
def test_no_name_is_both_a_module_and_something_else(package):
    assert not set(package.__all__) & _submodules(package)


def test_the_lab_does_not_import_torch():
    code = "import sys, headway.lab, headway.cli; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"


def test_integrations_import_no_framework():
    code = "import sys, headway.integrations; print({'lightning', 'accelerate', 'transformers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "set()"
