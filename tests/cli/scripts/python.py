"""Stands in for Python where a process that is forked calls it: python.py -c CODE ARGS, or python.py -m MODULE ARGS."""

import runpy
import sys

_, option, what, *args = sys.argv
sys.argv[:] = [option, *args]
if option == "-m":
    runpy.run_module(what, run_name="__main__", alter_sys=True)
else:
    exec(what)
