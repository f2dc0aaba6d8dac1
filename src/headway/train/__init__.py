"""Reference workloads, for the benchmarks: data and models."""

from headway.train.data import Samples, Task, load_digits, load_idx, load_images
from headway.train.models import cnn

__all__ = ["Samples", "Task", "cnn", "load_digits", "load_idx", "load_images"]
