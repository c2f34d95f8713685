"""Train a byte-level GPT on the source of Python's standard library."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from data import load_text, sample_windows
from model import GPT

import dslaunch.engine as deepspeed


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
    parser.add_argument("--steps", type=int, default=120, help="train up to this optimizer step")
    parser.add_argument("--save_dir", help="write a checkpoint here at the end")
    parser.add_argument("--save_every", type=int, default=0, metavar="STEPS", help="and after so many steps")
    parser.add_argument("--resume", action="store_true", help="go on from the newest one in --save_dir")
    parser.add_argument("--log_every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--num_layers", type=int, default=2)
    parser.add_argument("--num_heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=128, metavar="BYTES")
    return deepspeed.add_config_arguments(parser).parse_args()


def mean_over_ranks(value: torch.Tensor) -> float:
    mean = value.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    model = GPT(dim=args.dim, num_layers=args.num_layers, num_heads=args.num_heads, context=args.context)
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def report(line: str) -> None:
        if rank == 0:
            print(line)

    first_step = 0
    if args.resume:
        path, client_state = engine.load_checkpoint(args.save_dir)
        if path is None:
            raise SystemExit(f"no checkpoint in {args.save_dir}")
        first_step = client_state["step"]
        report(f"resumed from {path} at step {first_step}")

    shape = (engine.train_micro_batch_size_per_gpu(), args.context + 1)
    generator = torch.Generator()

    def batch(text: torch.Tensor, number: int) -> torch.Tensor:
        """This rank's windows of micro step `number`; seeded by it, so that a resumed run goes on exactly."""
        generator.manual_seed((args.seed << 40) + number * world_size + rank)
        return sample_windows(text, shape, generator).to(engine.device)

    train_text, validation_text = load_text("train"), load_text("validation")
    accumulation = engine.gradient_accumulation_steps()
    tokens_a_step = engine.train_batch_size() * args.context
    timed_from, timed_step = time.perf_counter(), first_step
    for step in range(first_step, args.steps):
        step_loss = torch.zeros((), device=engine.device)
        for micro_step in range(accumulation):
            loss = engine(batch(train_text, step * accumulation + micro_step))
            engine.backward(loss)
            engine.step()
            step_loss += loss.detach() / accumulation
        done = step + 1
        if step == first_step or done % args.log_every == 0 or done == args.steps:
            mean = mean_over_ranks(step_loss)
            speed = tokens_a_step * (done - timed_step) / (time.perf_counter() - timed_from)
            report(f"step {done}/{args.steps}  loss {mean:.4f}  {speed:,.0f} tokens/s")
            timed_from, timed_step = time.perf_counter(), done
        if args.save_every and done % args.save_every == 0:
            engine.save_checkpoint(args.save_dir, client_state={"step": done})

    engine.eval()
    with torch.no_grad():
        losses = torch.stack([engine(batch(validation_text, number)) for number in range(8)])
    report(f"validation loss {mean_over_ranks(losses.mean()):.4f}")
    if args.save_dir:
        engine.save_checkpoint(args.save_dir, client_state={"step": args.steps})


if __name__ == "__main__":
    main()
