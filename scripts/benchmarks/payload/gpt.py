"""A plain GPT, and a heap of tiny layers: what the engine benchmark trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the model and of one micro batch."""

    layers: int
    width: int
    heads: int
    vocab: int
    seq: int
    micro: int


class Block(torch.nn.Module):
    """Attention and a feed-forward net, both on normalised inputs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, seq, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
        hidden = functional.gelu(self.up(self.before_mlp(x)), approximate="tanh")
        return x + cast(torch.Tensor, self.down(hidden))


class Gpt(torch.nn.Module):
    """Returns the loss of predicting each next token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(shape.vocab, shape.width)
        self.places = torch.nn.Embedding(shape.seq, shape.width)
        self.blocks = torch.nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = torch.nn.LayerNorm(shape.width)
        self.head = torch.nn.Linear(shape.width, shape.vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class Tiny(torch.nn.Module):
    """12 blocks of 8 linear layers of 8 x 8: 192 tensors that cost the host and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8))) for _ in range(12)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = ids[:, :8].to(next(self.parameters()).dtype if next(self.parameters()).numel() else torch.float32)
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()
