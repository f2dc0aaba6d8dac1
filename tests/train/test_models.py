"""Models learn, fit their data, and are rejected for other data."""

from __future__ import annotations

import pytest
import torch

from headway.train.evaluation import loss_of
from headway.train.models import MODELS, build_model, check_model, transformer
from headway.train.samples import Samples, Task


def random_task(*, is_text: bool) -> Task:
    generator = torch.Generator().manual_seed(0)
    if is_text:
        inputs = (torch.arange(64) + torch.arange(8)[:, None]) % 7
        samples = Samples(inputs, inputs.roll(-1, dims=1))
    else:
        samples = Samples(torch.randn(8, 1, 28, 28, generator=generator), torch.arange(8) % 7)
    return Task(name="random", train=samples, test=samples, num_classes=7)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_memorises_a_few_samples(name):
    torch.manual_seed(0)
    task = random_task(is_text=name == "transformer")
    model = build_model(name, task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(model(task.train.inputs), task.train.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert losses[-1] < losses[0] / 3


def test_a_character_is_predicted_from_those_before_it_alone():
    torch.manual_seed(0)
    model = transformer(20).eval()
    text = torch.randint(20, (1, 64))
    changed = text.clone()
    changed[0, 40:] = (changed[0, 40:] + 1) % 20
    with torch.no_grad():
        before, after = model(text), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


@pytest.mark.parametrize(
    ("name", "is_text", "said"),
    [
        ("vgg", False, "there is no model 'vgg': choose one of mlp, cnn, resnet, transformer"),
        ("cnn", True, "the model cnn is not for text: use transformer"),
        ("transformer", False, "the model transformer is not for images: use mlp, cnn or resnet"),
    ],
)
def test_a_model_for_other_data_is_rejected(name, is_text, said):
    with pytest.raises(ValueError, match=said):
        check_model(name, is_text=is_text)
