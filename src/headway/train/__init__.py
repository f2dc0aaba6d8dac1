"""Reference workloads: data, models, and the loop that trains them, for the command line, the demo and benchmarks."""

from headway.train.images import load_digits, load_idx, load_images
from headway.train.models import cnn
from headway.train.samples import Samples, Task

__all__ = ["Samples", "Task", "cnn", "load_digits", "load_idx", "load_images"]
