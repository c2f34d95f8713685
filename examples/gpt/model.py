"""A byte-level GPT: a pre-norm transformer with learned positions."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

NUM_BYTES = 256


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a norm and around a residual."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, time, dim]
        heads = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each [batch, head, time, dim of a head]
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm_mlp(x))))


class GPT(nn.Module):
    """Maps windows of bytes to the mean cross-entropy (nats a byte) of predicting each from those before."""

    def __init__(self, *, dim: int, num_layers: int, num_heads: int, context: int) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(NUM_BYTES, dim), nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, num_heads) for _ in range(num_layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, NUM_BYTES, bias=False)
        for linear in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=0.02)  # small logits: the first loss is about ln 256
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:  # [batch, context + 1], int64
        seen, target = windows[:, :-1], windows[:, 1:]
        x = self.blocks(self.bytes(seen) + self.positions.weight[: seen.shape[1]])
        return cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), target.flatten())
