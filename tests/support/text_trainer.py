"""A tiny model of texts, trained by sentence-transformers' own trainer: in this process, or as one of several by torchrun.

torchrun --nproc-per-node 2 -m tests.support.text_trainer MODEL_FOLDER OUT KIND
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORDS = "red green blue small large old new cat dog house tree car is a the in of".split()  # noqa: SIM905
STEPS, GLOBAL_BATCH = 4, 16


def texts(rows: int, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (5,), generator=generator)) for _ in range(rows)]


def trained(folder: Path, out: Path, kind: str, *, ranks: int) -> dict[str, Any]:
    """What is there after some steps on batches of 16 triplets, whoever shares them."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from transformers import TrainerCallback

    from flatclr import EssControl
    from flatclr.integrations import sentence_transformers as here

    model = SentenceTransformer(str(folder), device="cpu")
    options = {"mini_batch_size": 3} if kind == "CachedFlatNCELoss" else {}
    control = EssControl(0.5, rate=0.02)
    loss = getattr(here, kind)(model, temperature=control, gather_across_devices=True, **options)
    columns = {"anchor": texts(64), "positive": texts(64, 1), "negative": texts(64, 2)}
    betas: list[float] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            betas.append(float(control.inverse_temperature))

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=GLOBAL_BATCH // ranks,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        optim="sgd",  # Adam would hide a gradient of another size
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        seed=3,
        disable_tqdm=True,
        ddp_backend="gloo" if ranks > 1 else None,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss, callbacks=[Watch()]
    )
    trainer.train()
    return {"model": model.state_dict(), "loss": loss.objective.state_dict(), "betas": betas}


def values(folder: Path, rank: int, ranks: int) -> tuple[float, float]:
    """Of the library's loss, the mean over processes, and of ours, on the same triplets shared by all."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from flatclr.integrations.sentence_transformers import FlatNCELoss

    model, own = SentenceTransformer(str(folder), device="cpu"), slice(rank, None, ranks)
    features = [model.preprocess(texts(12, seed)[own]) for seed in range(3)]
    theirs = MultipleNegativesRankingLoss(model, gather_across_devices=True)(features, None).detach()
    dist.all_reduce(theirs)
    mine = FlatNCELoss(model, gather_across_devices=True)([dict(column) for column in features], None)
    return theirs.item() / ranks, mine.item()


def main() -> None:
    folder, out, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {"values": values(folder, rank, ranks)}
    torch.save(found | trained(folder, out, kind, ranks=ranks), out / f"{kind}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
