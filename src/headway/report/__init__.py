"""Records of training and how they are shown: run directories, TensorBoard, HTML pages and pictures."""

from headway.report.events import VERSION, EventLog
from headway.report.page import Summary, summarise, write_page
from headway.report.pair_matrix import draw_pair_matrix
from headway.report.reading import Reading, read
from headway.report.recorder import Recorder
from headway.report.regime_map import draw_regime_map
from headway.report.run import Run, find_runs, read_events, read_run
from headway.report.tensorboard import TensorBoard, scalars

__all__ = [
    "VERSION",
    "EventLog",
    "Reading",
    "Recorder",
    "Run",
    "Summary",
    "TensorBoard",
    "draw_pair_matrix",
    "draw_regime_map",
    "find_runs",
    "read",
    "read_events",
    "read_run",
    "scalars",
    "summarise",
    "write_page",
]
