"""Compressors: tensor to message, with error feedback. One algorithm, one file."""

from headway.compress.base import BucketMemory, Compressed, Compressor, Shape, gain_of, wanted_entries
from headway.compress.layerwise import LayerwiseTopK
from headway.compress.mstopk import MSTopK
from headway.compress.quantized import Quantized
from headway.compress.randomk import random_indices
from headway.compress.topk import TopK

__all__ = [
    "BucketMemory",
    "Compressed",
    "Compressor",
    "LayerwiseTopK",
    "MSTopK",
    "Quantized",
    "Shape",
    "TopK",
    "gain_of",
    "random_indices",
    "wanted_entries",
]
