"""Print the time every 50 ms until a file exists; announce ticks as steps: ticker.py FILE.

Rank 0 begins when all others tick. Rank 2 does not look for the file.
"""

import os
import sys
import time
from pathlib import Path

END, RANK = Path(sys.argv[1]), int(os.environ["RANK"])
TICKING = [Path(f"{END}-{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))]
if RANK == 0:
    from headway.lab import Control

    control = Control()
    while not all(path.exists() for path in TICKING[1:]):
        time.sleep(0.01)
for tick in range(1000):
    if RANK != 2 and END.exists():
        break
    if RANK == 0:
        control.step(tick)
    print("tick", tick, time.monotonic(), flush=True)
    TICKING[RANK].touch()
    time.sleep(0.05)
