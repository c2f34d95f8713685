"""The training dataloader: every rank reads its own part of the data in micro batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from dslaunch.engine.batch import World

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset


class TrainingDataLoader:
    """Iterates a rank's share of `dataset`; every pass is shuffled anew, the same way on all ranks."""

    def __init__(
        self,
        dataset: Dataset[object],
        batch_size: int,
        world: World,
        collate_fn: Callable[[list[object]], object] | None = None,
        drop_last: bool = False,
    ) -> None:
        import torch
        from torch.utils.data import DataLoader, IterableDataset
        from torch.utils.data.distributed import DistributedSampler

        self.dataset = dataset
        self.batch_size = batch_size
        self.data_sampler: DistributedSampler[object] | None = None
        if not isinstance(dataset, IterableDataset):
            self.data_sampler = DistributedSampler(dataset, world.size, world.rank, drop_last=drop_last)
        self.dataloader: DataLoader[object] = DataLoader(
            dataset,
            batch_size,
            sampler=self.data_sampler,
            collate_fn=collate_fn,
            drop_last=drop_last,
            pin_memory=torch.cuda.is_available(),
        )
        self.epoch = 0

    def __len__(self) -> int:
        """Micro batches of one pass on this rank."""
        return len(self.dataloader)

    def __iter__(self) -> Iterator[object]:
        if self.data_sampler is not None:
            self.data_sampler.set_epoch(self.epoch)
        self.epoch += 1
        return iter(self.dataloader)


class RepeatingLoader:
    """`deepspeed.utils.RepeatingLoader`: iterates `loader` without end, each pass as the loader makes it."""

    def __init__(self, loader: Iterable[object]) -> None:
        self.loader = loader
        self._pass = iter(loader)

    def __iter__(self) -> RepeatingLoader:
        return self

    def __next__(self) -> object:
        try:
            return next(self._pass)
        except StopIteration:
            self._pass = iter(self.loader)
            return next(self._pass)
