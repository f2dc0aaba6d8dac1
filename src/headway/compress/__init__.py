"""Compressors: tensor to message, with error feedback or without a memory. One algorithm, one file."""

from headway.compress.base import BucketMemory, Compressed, Compressor, Shape, check_ratio, gain_of, wanted_entries
from headway.compress.contraction import Contraction
from headway.compress.full import FullPrecision
from headway.compress.layerwise import LayerwiseTopK
from headway.compress.mstopk import MSTopK
from headway.compress.plain import BiasedCompressor, PlainCompressor, UnbiasedCompressor
from headway.compress.quantized import Quantized
from headway.compress.randomk import RandomK, random_indices
from headway.compress.sign import Sign
from headway.compress.stochastic import StochasticQuantizer
from headway.compress.topk import TopK

__all__ = [
    "BiasedCompressor",
    "BucketMemory",
    "Compressed",
    "Compressor",
    "Contraction",
    "FullPrecision",
    "LayerwiseTopK",
    "MSTopK",
    "PlainCompressor",
    "Quantized",
    "RandomK",
    "Shape",
    "Sign",
    "StochasticQuantizer",
    "TopK",
    "UnbiasedCompressor",
    "check_ratio",
    "gain_of",
    "random_indices",
    "wanted_entries",
]
