"""FlatNCE inside sentence-transformers: values of its own losses, one gradient with and without a cache, resume.

No weights are downloaded: a tiny BERT is made from its configuration, with a tokenizer made here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatclr import EssControl
from flatclr.diagnostics.check_loss import check_loss

pytest.importorskip("sentence_transformers", reason='install it by pip install "flatclr[sentence-transformers]"')

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)

from flatclr.integrations.sentence_transformers import CachedFlatNCELoss, FlatNCELoss, KeepLossState
from tests.support import text_trainer
from tests.support.text_trainer import WORDS, texts
from tests.support.training import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the libraries warn of their own affairs
ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small layers, saved where a name would be looked up."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizer

    path = tmp_path_factory.mktemp("bert")
    vocabulary = path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    tokenizer = BertTokenizer(str(vocabulary))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    chances = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes, **chances)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    body = Transformer(str(path))
    SentenceTransformer(modules=[body, Pooling(16)], device="cpu").save(str(path / "model"))
    return path / "model"


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def tokenized(model: SentenceTransformer, columns: int, rows: int = 6) -> list[dict[str, Tensor]]:
    return [model.preprocess(texts(rows, seed)) for seed in range(columns)]


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("columns", [2, 3, 4], ids=["pairs", "triplets", "two hard negatives"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 5.0},
        {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
        {"directions": ("query_to_doc", "query_to_query")},
        {"directions": ("query_to_doc", "doc_to_query")},
        {"directions": ALL},
    ],
    ids=str,
)
def test_values_equal_those_of_multiple_negatives_ranking(
    model: SentenceTransformer, columns: int, options: dict[str, Any]
) -> None:
    features = tokenized(model, columns)
    theirs = MultipleNegativesRankingLoss(model, **options)(features, None)
    mine = FlatNCELoss(model, **options)(features, None)
    assert mine.item() == pytest.approx(theirs.item(), abs=1e-5)
    with_positive = FlatNCELoss(model, **options, keep_positive=True)(features, None)
    for got, want in zip(gradients(model, with_positive), gradients(model, theirs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_own_hard_negatives_are_contrasted_with_their_query_alone() -> None:
    z = torch.nn.functional.normalize(torch.randn(4, 5, 3, dtype=torch.float64), dim=-1)
    queries, documents, *hard = z
    loss = FlatNCELoss(nn.Identity(), scale=10.0, shared_hard_negatives=False).loss_of([queries, documents, *hard])
    scores = 10 * torch.cat([queries @ documents.T, *((queries * h).sum(1, keepdim=True) for h in hard)], 1)
    want = torch.nn.functional.cross_entropy(scores, torch.arange(5))
    torch.testing.assert_close(loss, want)


@pytest.mark.parametrize("columns", [2, 3])
def test_the_cached_loss_has_the_value_and_gradient_of_the_plain_one(model: SentenceTransformer, columns: int) -> None:
    plain = FlatNCELoss(model)(tokenized(model, columns), None)
    wanted = gradients(model, plain)
    cached = CachedFlatNCELoss(model, mini_batch_size=2)(tokenized(model, columns), None)
    theirs = CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)(tokenized(model, columns), None)
    assert cached.item() == pytest.approx(plain.item(), abs=1e-5)
    assert cached.item() == pytest.approx(theirs.item(), abs=1e-5)
    for got, want in zip(gradients(model, cached), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["shared", "own", "both_directions", "joint"])
def test_hard_negatives_of_all_ranks_have_the_gradient_of_one_process(name: str) -> None:
    (check,) = check_loss(f"tests.support.text_losses:{name}", ranks=[2])
    assert check.equal, check


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["FlatNCELoss", "CachedFlatNCELoss"])
def test_the_trainer_on_two_ranks_follows_the_trainer_of_one_and_the_controller_is_the_same_on_both(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = ["-m", "tests.support.text_trainer", str(folder), str(tmp_path), kind]
    done = subprocess.run([*launcher, *worker], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [torch.load(tmp_path / f"{kind}-{rank}.pt", weights_only=True) for rank in range(2)]
    alone = text_trainer.trained(folder, tmp_path / "alone", kind, ranks=1)
    before = SentenceTransformer(str(folder), device="cpu").state_dict()

    for theirs, mine in (rank["values"] for rank in ranks):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert ranks[0]["betas"] == ranks[1]["betas"] == pytest.approx(alone["betas"], rel=1e-6)
    assert len(set(alone["betas"])) == text_trainer.STEPS  # one step of the controller for each of the optimizer
    for name, want in alone["loss"].items():
        torch.testing.assert_close(ranks[0]["loss"][name], ranks[1]["loss"][name], rtol=0, atol=0)
        torch.testing.assert_close(ranks[0]["loss"][name], want)
    moved = max(float((alone["model"][name] - weight).abs().max()) for name, weight in before.items())
    for name, want in alone["model"].items():
        for rank in ranks:
            torch.testing.assert_close(rank["model"][name], want, rtol=1e-4, atol=1e-3 * moved)


def trained(
    folder: Path, out: Path, steps: int, kind: type[FlatNCELoss], *, resume: bool = False
) -> tuple[EssControl, nn.Module]:
    """A tiny model for so many steps of two micro-batches, a checkpoint every third."""
    from datasets import Dataset

    model = SentenceTransformer(str(folder), device="cpu")
    control = EssControl(0.5, rate=0.02)
    loss = kind(model, temperature=control)
    data = Dataset.from_dict({"anchor": texts(96), "positive": texts(96, 1), "negative": texts(96, 2)})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        seed=3,
        lr_scheduler_type="constant",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[KeepLossState(loss)]
    )
    trainer.train(resume_from_checkpoint=resume)
    return control, model


@pytest.mark.parametrize("kind", [FlatNCELoss, CachedFlatNCELoss])
def test_the_trainer_steps_the_controller_once_per_update_and_resumes_it(
    folder: Path, tmp_path: Path, kind: type[FlatNCELoss]
) -> None:
    whole, _ = trained(folder, tmp_path / "whole", 6, kind)
    first, _ = trained(folder, tmp_path / "cut", 3, kind)
    assert first.inverse_temperature.item() == pytest.approx(10 * 1.02**3)  # up, in a random model
    saved = json.loads((tmp_path / "cut" / "checkpoint-3" / "trainer_state.json").read_text())
    assert "KeepLossState" in saved["stateful_callbacks"]
    resumed, _ = trained(folder, tmp_path / "cut", 6, kind, resume=True)
    for name, want in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], want)


def test_a_model_learns_which_texts_belong_together(model: SentenceTransformer) -> None:
    torch.manual_seed(0)
    loss = FlatNCELoss(model, temperature=EssControl(0.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pairs = [(f"the {word} cat", f"a {word} tree") for word in WORDS[:12]]
    losses = []
    for _ in range(40):
        features = [model.preprocess(list(column)) for column in zip(*pairs, strict=True)]
        value = loss(features, None)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"similarity_fct": lambda a, b: a @ b.T}, "similarity_fct must be .*cos_sim"),
        ({"directions": ("doc_to_query",)}, "directions must be a tuple with 'query_to_doc'"),
        ({"directions": ALL, "partition_mode": "per_direction"}, "partition_mode must be 'joint'"),
        ({"partition_mode": "none"}, "partition_mode must be one of"),
        ({"directions": ALL, "shared_hard_negatives": False}, "shared_hard_negatives must be True"),
        ({"scale": 0}, "scale must be"),
        ({"directions": ALL, "temperature": EssControl(per_anchor=True)}, "temperature must be one for all queries"),
    ],
)
def test_bad_arguments_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FlatNCELoss(nn.Identity(), **bad)


def test_one_column_is_refused_and_so_is_a_callback_without_its_loss() -> None:
    with pytest.raises(ValueError, match="columns must be anchor, positive"):
        FlatNCELoss(nn.Identity()).loss_of([torch.randn(4, 3)])
    with pytest.raises(TypeError, match="loss must be a FlatNCELoss, got NoneType"):
        KeepLossState()


def test_a_name_that_is_not_here_and_cannot_be_fetched_ends_in_the_librarys_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what the variable of this name sets
    with pytest.raises(OSError, match=r"(?i)not-a-model|connect|offline|cached"):
        SentenceTransformer("flatclr/not-a-model", device="cpu")
