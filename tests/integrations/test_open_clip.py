"""The drop-ins for open_clip's losses: values and gradients of the formulas, and of open_clip's own file."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flatclr import EssControl
from flatclr.diagnostics.check_loss import check_loss
from flatclr.integrations.open_clip import ClipLoss, SigLipLoss


def features(pairs: int = 6, d: int = 5) -> tuple[Tensor, Tensor]:
    z = F.normalize(torch.randn(2, pairs, d, dtype=torch.float64), dim=-1)
    return z[0].requires_grad_(), z[1].requires_grad_()


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def clip_oracle(image: Tensor, text: Tensor, scale: Tensor) -> Tensor:
    scores, diagonal = scale * image @ text.T, torch.arange(len(image))
    return (F.cross_entropy(scores, diagonal) + F.cross_entropy(scores.T, diagonal)) / 2


def siglip_oracle(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    signs = 2 * torch.eye(len(image), dtype=image.dtype) - 1
    return -F.logsigmoid(signs * (scale * image @ text.T + bias)).sum() / len(image)


def assert_same(loss: Tensor, want: Tensor, leaves: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(loss, want)
    found, wanted = torch.autograd.grad(loss, leaves), torch.autograd.grad(want, leaves)
    torch.testing.assert_close(found, wanted)


def test_infonce_has_the_value_and_the_gradient_of_clip() -> None:
    image, text, scale = *features(), number(14.0)
    assert_same(
        ClipLoss(objective="infonce")(image, text, scale), clip_oracle(image, text, scale), (image, text, scale)
    )


def test_flatnce_reads_as_clip_and_does_not_learn_the_scale() -> None:
    image, text, scale = *features(), number(14.0)
    loss = ClipLoss()(image, text, scale, output_dict=True)["contrastive_loss"]
    torch.testing.assert_close(loss, clip_oracle(image, text, scale))
    of_image, of_scale = torch.autograd.grad(loss, (image, scale))
    assert of_scale == 0
    others = 14 * (image @ text.T).masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf)
    gap = (others.logsumexp(1) + others.logsumexp(0)).mean() / 2 - 14 * (image * text).sum(1).mean()
    (free,) = torch.autograd.grad(gap, image)
    on_sphere = free - (free * image).sum(1, keepdim=True) * image
    torch.testing.assert_close(of_image - (of_image * image).sum(1, keepdim=True) * image, on_sphere)


def test_sigmoid_has_the_value_and_the_gradient_of_siglip() -> None:
    image, text, scale, bias = *features(), number(10.0), number(-8.0)
    want = siglip_oracle(image, text, scale, bias)
    assert_same(SigLipLoss()(image, text, scale, bias), want, (image, text, scale, bias))


@pytest.mark.parametrize("loss", [ClipLoss(objective="infonce"), SigLipLoss()], ids=["clip", "siglip"])
def test_a_scale_beyond_the_clamp_counts_as_the_clamp_and_can_come_back(loss: Any) -> None:
    image, text, scale = *features(), number(130.0)
    torch.testing.assert_close(loss(image, text, scale, number(0.0)), loss(image, text, number(100.0), number(0.0)))
    assert torch.autograd.grad(loss(image, text, scale, number(0.0)), scale)[0] != 0


def test_a_controller_takes_the_place_of_the_models_scale() -> None:
    control = EssControl(0.5, initial=5.0)
    image, text, scale = *(z.float().detach().requires_grad_() for z in features()), number(14.0)
    loss = ClipLoss(temperature=control)(image, text, scale)
    torch.testing.assert_close(loss.double(), clip_oracle(image.double(), text.double(), number(5.0)))
    torch.optim.SGD([image], lr=0.1).step()
    assert control.inverse_temperature != 5


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"use_horovod": True}, "use_horovod must be False"),
        ({"objective": "dcl"}, "objective must be one of"),
        ({"max_logit_scale": 0}, "max_logit_scale must be"),
    ],
)
def test_bad_arguments_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ClipLoss(**bad)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("loss", "options", "arguments"),
    [
        ("ClipLoss", {}, [10.0]),
        ("ClipLoss", {"objective": "infonce", "local_loss": True}, [10.0]),
        ("SigLipLoss", {}, [10.0, -8.0]),
    ],
)
def test_two_ranks_have_the_gradient_of_one_process(loss: str, options: dict[str, Any], arguments: list[float]) -> None:
    name, said = f"tests.support.clip_losses:{loss}", {**options, "world_size": "{ranks}"}
    (check,) = check_loss(name, ranks=[2], options=said, arguments=arguments)
    assert check.equal, check


@pytest.fixture(scope="module")
def open_clip() -> ModuleType:
    """The losses of the installed open_clip by their file: the package itself imports torchvision."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None or spec.origin is None:
        pytest.skip("open_clip is not installed: pip install --no-deps open_clip_torch")
    file = Path(spec.origin).parent / "loss.py"
    of_file = importlib.util.spec_from_file_location("open_clip_loss", file)
    assert of_file is not None
    assert of_file.loader is not None
    module = importlib.util.module_from_spec(of_file)
    sys.modules["open_clip_loss"] = module
    of_file.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_losses_of_the_real_library_have_the_same_values_gradients_and_signatures(open_clip: ModuleType) -> None:
    image, text, scale, bias = *features(), number(14.0), number(-8.0)
    said = {"local_loss": False, "gather_with_grad": True, "cache_labels": True, "rank": 0, "world_size": 1}
    theirs = open_clip.ClipLoss(**said)(image, text, scale, output_dict=True)["contrastive_loss"]
    mine = ClipLoss(**said, objective="infonce")(image, text, scale, output_dict=True)["contrastive_loss"]
    assert_same(mine, theirs, (image, text, scale))
    torch.testing.assert_close(ClipLoss(**said)(image, text, scale), theirs)
    said = {"cache_labels": True, "rank": 0, "world_size": 1, "dist_impl": "bidir"}
    siglip = [made(**said)(image, text, scale, bias) for made in (SigLipLoss, open_clip.SigLipLoss)]
    assert_same(*siglip, (image, text, scale, bias))
