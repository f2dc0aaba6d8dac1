"""Stands in for Python where a process that is forked calls it.

python.py [-u] -c CODE ARGS, -m MODULE ARGS or SCRIPT ARGS: all that is printed is flushed line by line in any case.
"""

import runpy
import sys

args = [arg for place, arg in enumerate(sys.argv[1:]) if (place, arg) != (0, "-u")]
if args[0] == "-m":
    sys.argv[:] = [args[0], *args[2:]]
    runpy.run_module(args[1], run_name="__main__", alter_sys=True)
elif args[0] == "-c":
    sys.argv[:] = [args[0], *args[2:]]
    exec(args[1])
else:
    sys.argv[:] = args
    runpy.run_path(args[0], run_name="__main__")
