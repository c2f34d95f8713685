"""Lightning's Trainer and Fabric with their DeepSpeed strategies. Started and answered as trainer_cases.py.

The strategies insist on Lightning's CUDA accelerator: without a GPU they get one whose devices are CPUs.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import lightning
import torch
from case_runner import close, folder, run_cases
from lightning.fabric.accelerators.cuda import CUDAAccelerator as FabricCuda
from lightning.fabric.strategies import DeepSpeedStrategy as FabricDeepSpeed
from lightning.pytorch.accelerators.cuda import CUDAAccelerator as TrainerCuda
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning.pytorch.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict
from torch.utils.data import DataLoader, TensorDataset

NUM_RANKS = int(os.environ["WORLD_SIZE"])
PLAIN = "cuda" if torch.cuda.is_available() else "cpu"


class _OnCpu:
    """What an accelerator is asked, answered for CPUs."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def setup(self, trainer: object) -> None:
        pass

    def teardown(self) -> None:
        pass

    def get_device_stats(self, device: object) -> dict[str, Any]:
        return {}

    @staticmethod
    def parse_devices(devices: int) -> list[int]:
        return list(range(devices))

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("cpu", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return NUM_RANKS

    @staticmethod
    def is_available() -> bool:
        return True


class CpuForTrainer(_OnCpu, TrainerCuda):
    pass


class CpuForFabric(_OnCpu, FabricCuda):
    pass


def accelerator(cpu: type[Any]) -> Any:
    return "cuda" if torch.cuda.is_available() else cpu()


def backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"


def data() -> DataLoader[Any]:
    torch.manual_seed(2)
    return DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 4)), batch_size=4)


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(
    strategy: Any, device: Any, checkpoint: Path | None = None, **settings: Any
) -> tuple[Any, list[float]]:
    trainer = lightning.Trainer(
        accelerator=device, devices=NUM_RANKS, strategy=strategy, max_epochs=2, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        gradient_clip_val=0.5, use_distributed_sampler=True, default_root_dir=str(folder()),
    )  # fmt: skip
    module = Regression()
    trainer.fit(module, data(), ckpt_path=checkpoint)
    return trainer, module.losses


def trainer() -> None:
    """Every stage has the losses of Lightning's DDP; a checkpoint is written and read.

    Without accumulation: Lightning divides the loss by it, and the engine does again, as DeepSpeed does.
    """
    _, expected = fit("ddp", PLAIN)
    for stage in (1, 2, 3):
        strategy = DeepSpeedStrategy(
            stage=stage, process_group_backend=backend(), exclude_frozen_parameters=True
        )
        fitted, losses = fit(strategy, accelerator(CpuForTrainer))
        close(losses, expected)
        path = folder() / f"trainer-{stage}.ckpt"
        fitted.save_checkpoint(path)
        if os.environ["RANK"] == "0":
            converted(path)
        strategy = DeepSpeedStrategy(stage=stage, process_group_backend=backend())
        fitted, losses = fit(strategy, accelerator(CpuForTrainer), path)
        assert losses == [], "both epochs were done"


def converted(path: Path) -> None:
    """Lightning's own converter reads what was saved, and its module loads what that has written."""
    weights = convert_zero_checkpoint_to_fp32_state_dict(path, folder() / "whole.ckpt")["state_dict"]
    assert {name.rsplit(".", 1)[1] for name in weights} == {"weight", "bias"}
    module = Regression.load_from_checkpoint(folder() / "whole.ckpt", map_location="cpu")
    for name, value in module.state_dict().items():
        assert torch.equal(value, weights[name])


def fabric() -> None:
    """Fabric's loop at stages 2 and 3 against its DDP."""
    seen: dict[object, list[float]] = {}
    for stage in (None, 2, 3):
        strategy: Any = "ddp"
        device: Any = PLAIN
        if stage is not None:
            strategy = FabricDeepSpeed(stage=stage, process_group_backend=backend())
            strategy.config["gradient_clipping"] = 0.0  # DeepSpeed's default clips to 1, DDP does not
            device = accelerator(CpuForFabric)
        fabric = lightning.Fabric(accelerator=device, devices=NUM_RANKS, strategy=strategy)
        fabric.launch()
        with fabric.init_module():
            model = Regression().layers
        plain = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer = fabric.setup(model, plain)
        losses = []
        for inputs, targets in fabric.setup_dataloaders(data()):
            loss = (model(inputs) - targets).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if stage is not None:
            fabric.save(folder() / f"fabric-{stage}", {"model": model, "optimizer": optimizer, "epoch": 3})
            rest = fabric.load(
                folder() / f"fabric-{stage}", {"model": model, "optimizer": optimizer, "epoch": 0}
            )
            assert rest is not None
        seen[stage] = losses
    close(seen[2], seen[None])
    close(seen[3], seen[None])


if __name__ == "__main__":
    sys.exit(run_cases([trainer, fabric]))
