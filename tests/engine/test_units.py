"""What stage 3 gathers together, and in which order; no ranks."""

from __future__ import annotations

import pytest
import torch

from dslaunch.engine.config_values import LeafModules
from dslaunch.engine.gather_order import GatherOrder
from dslaunch.engine.units import LARGE_NUMEL, UnitRules, find_units, leaf_rule


def names(model: torch.nn.Module, leaves: LeafModules | None = None, scale: int = 1) -> dict[str, int]:
    rules = UnitRules(leaf_rule(leaves or LeafModules()), lambda param: param.numel() * scale)
    return {unit.name: len(unit.params) for unit in find_units(model, rules)}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(2)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(2, 2)
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))
        self.norm = torch.nn.LayerNorm(2)


class Whole(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()
        self.head = torch.nn.Linear(2, 2)
        self.scale = torch.nn.Parameter(torch.ones(()))


def test_blocks_are_units_and_what_stands_beside_them() -> None:
    assert names(Whole()) == {
        "": 1,
        "model.embed": 1,
        "model.layers.0": 6,
        "model.layers.1": 6,
        "model.norm": 2,
        "head": 2,
    }


def test_dicts_of_lists_and_nested_sequences() -> None:
    torso = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(2, 2), "h": torch.nn.ModuleList([Block(), Block()])}
    )
    assert list(names(torch.nn.ModuleDict({"transformer": torso}))) == [
        "transformer.embed",
        "transformer.h.0",
        "transformer.h.1",
    ]
    stages = torch.nn.Sequential(torch.nn.Sequential(Block(), Block()), Block())
    assert list(names(stages)) == ["0.0", "0.1", "1"]
    layers = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)) for _ in range(2)]
    assert list(names(torch.nn.ModuleDict({"h": torch.nn.ModuleList(layers)}))) == ["h.0", "h.1"]


def test_leaves_and_large_blocks() -> None:
    assert names(Whole(), LeafModules(classes=("Decoder",))) == {"": 1, "model": 15, "head": 2}
    assert "model" in names(Whole(), LeafModules(name_suffixes=("del",)))
    split = names(Whole(), scale=LARGE_NUMEL // 8)
    assert {"model.layers.0.norm", "model.layers.0.mlp.0", "model.layers.0.mlp.1"} <= split.keys()


def test_a_single_module_is_one_unit() -> None:
    assert names(torch.nn.Linear(2, 2)) == {"": 2}


def test_the_order_is_expected_once_it_has_been_recorded() -> None:
    asked: list[str] = []
    order = GatherOrder(asked.append)
    for _ in range(2):
        order.begin("train")
        for bucket in (0, 1, 1, 0):
            order.step(bucket, f"m{bucket}", False)
    assert asked == ["m0", "m1", "m1", "m0"]  # the second pass asks nobody
    order.begin("train")
    assert list(order.ahead()) == [0, 1, 1, 0]
    order.step(0, "m0", False)
    assert list(order.ahead()) == [1, 1, 0]
    order.step(2, "m2", False)
    assert list(order.ahead()) == []
    order.step(1, "m1", False)
    assert asked[4:] == ["m2", "m1"]
    order.begin("eval")
    order.begin("train")
    assert list(order.ahead()) == [0, 2, 1]


def test_what_backward_needs_is_not_ahead_of_its_forward() -> None:
    order = GatherOrder(lambda _: None)
    steps = ((0, False), (1, False), (2, False), (2, True), (1, True), (0, True))
    for _ in range(2):
        order.begin("train")
        seen = []
        for bucket, backward in steps:
            order.step(bucket, "", backward)
            seen.append(list(order.ahead_of_turn()))
    assert seen == [[1, 2], [2], [], [1, 0], [0], []]


def test_a_disagreement_is_an_error_of_the_step() -> None:
    def disagree(where: str) -> None:
        raise RuntimeError(where)

    order = GatherOrder(disagree)
    order.begin(None)
    with pytest.raises(RuntimeError, match="m3"):
        order.step(3, "m3", False)
