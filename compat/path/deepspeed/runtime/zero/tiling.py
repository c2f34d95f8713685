"""A linear layer in tiles."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("runtime.zero.tiling", "use torch.nn.Linear; stage 3 gathers layer by layer")

TiledLinear = _missing.type("TiledLinear")
TiledLinearReturnBias = _missing.type("TiledLinearReturnBias")
