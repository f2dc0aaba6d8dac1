"""A small transformer that foretells the next character."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.train.text import CONTEXT

_WIDTH = 128
_NUM_HEADS = 4
_NUM_LAYERS = 2


class Transformer(nn.Module):
    """Characters in, and for each place a score for every character that may follow: (n, 64) -> (n, 64, classes)."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, _WIDTH)
        self.places = nn.Parameter(torch.zeros(CONTEXT, _WIDTH))
        layer = nn.TransformerEncoderLayer(
            _WIDTH, _NUM_HEADS, 4 * _WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, _NUM_LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, num_characters)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores; a place sees itself and those before it."""
        length = x.shape[1]
        hidden = self.characters(x) + self.places[:length]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        hidden = self.layers(hidden, mask=later, is_causal=True)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


def transformer(num_classes: int = 256) -> nn.Module:
    """Return a transformer of 2 layers, 128 wide, for 64 characters at a time.

    >>> sum(parameter.numel() for parameter in transformer().parameters())
    470784
    """
    return Transformer(num_classes)
