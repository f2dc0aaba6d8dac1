"""Compressors: tensor to message, and error feedback around any of them. One algorithm, one file."""

from headway.compress.base import Compressor, DenseCompressor, check_ratio, wanted_entries
from headway.compress.contraction import Contraction
from headway.compress.feedback import Compressed, ErrorFeedback, FusedCompressor, Taken, gain_of
from headway.compress.full import FullPrecision
from headway.compress.layerwise import LayerwiseTopK
from headway.compress.memory import BucketMemory, Shape, Undo
from headway.compress.mstopk import MSTopK
from headway.compress.quantizer import StochasticQuantizer
from headway.compress.randomk import RandomK, random_indices
from headway.compress.sign import Sign
from headway.compress.topk import TopK

__all__ = [
    "BucketMemory",
    "Compressed",
    "Compressor",
    "Contraction",
    "DenseCompressor",
    "ErrorFeedback",
    "FullPrecision",
    "FusedCompressor",
    "LayerwiseTopK",
    "MSTopK",
    "RandomK",
    "Shape",
    "Sign",
    "StochasticQuantizer",
    "Taken",
    "TopK",
    "Undo",
    "check_ratio",
    "gain_of",
    "random_indices",
    "wanted_entries",
]
