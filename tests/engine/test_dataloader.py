"""Loaders without ranks; how ranks share data is in engine_cases."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from dslaunch.engine.batch import World
from dslaunch.engine.dataloader import RepeatingLoader, TrainingDataLoader


def test_repeating_never_ends_and_shuffles_anew() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(32))
    loader = TrainingDataLoader(data, 4, World(2, 0, 0, "a test"))
    seen = [batch[0] for batch in islice(RepeatingLoader(loader), 8)]  # type: ignore[index]
    assert loader.epoch == 2
    first, second = torch.cat(seen[:4]), torch.cat(seen[4:])
    assert len(set(first.tolist())) == 16
    assert not torch.equal(first, second)


def test_repeating_nothing_ends() -> None:
    with pytest.raises(StopIteration):
        next(RepeatingLoader([]))
