"""``headway train`` whose workers are forked as it is itself: train.py PYTHON ARGS."""

import sys
from types import SimpleNamespace

from headway.cli import main
from headway.train import launch

launch.sys = SimpleNamespace(executable=sys.argv.pop(1))
main()
