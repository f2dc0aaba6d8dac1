"""``torchrun`` in a forked process: torchrun.py ARGS. Its workers are started by ``PYTHON_EXEC``, if that is set."""

from torch.distributed.run import main

main()
