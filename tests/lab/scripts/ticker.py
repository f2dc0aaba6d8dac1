"""Print the time every 50 ms for some seconds; announce each tick as a step if asked to."""

import sys
import time

if "steps" in sys.argv:
    from headway.lab import Control

    control = Control()
for tick in range(int(float(sys.argv[1]) / 0.05)):
    if "steps" in sys.argv:
        control.step(tick)
    print("tick", tick, time.monotonic())
    time.sleep(0.05)
