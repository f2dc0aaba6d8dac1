"""The end of a backward pass is noticed, also of one that fails."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import headway
from headway.ddp.backward import EndOfBackward, notice_failure
from tests.ddp.training import fixed, wrap


class Failing(torch.autograd.Function):
    """Raises in backward, if it is told to."""

    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise ZeroDivisionError("made to fail")
        return gradient, None


def run_backward(end: EndOfBackward, *, fails: bool) -> None:
    """Queue the callback once the gradient has come to the last layer."""
    x = torch.ones(3, requires_grad=True)
    y = Failing.apply(x, fails)
    held = [end]
    del end
    y.register_hook(lambda gradient: held.pop().queue())
    y.sum().backward()


@pytest.mark.parametrize("fails", [False, True])
def test_a_pass_ends_or_fails_and_the_one_function_is_called(fails):
    called: list[str] = []
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        run_backward(EndOfBackward(lambda: called.append("end"), lambda: called.append("failure")), fails=fails)
    assert called == ["failure" if fails else "end"]


def test_what_the_function_at_the_end_raises_backward_raises():
    called: list[str] = []
    with pytest.raises(KeyError):
        run_backward(EndOfBackward(lambda: {}[0], lambda: called.append("failure")), fails=False)
    assert called == []


def test_outside_of_a_pass_nothing_is_called():
    called: list[str] = []
    EndOfBackward(lambda: called.append("end"), lambda: called.append("failure")).queue()
    assert called == []


class Model(nn.Module):
    """Its last layer has its gradient when backward fails."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x, fails):
        return self.last(Failing.apply(self.first(x), fails))


class Called:
    """Notes that it was called."""

    def __init__(self) -> None:
        self.times: list[str] = []

    def note(self) -> None:
        self.times.append("failure")


def fail_in_ddp() -> list[list[str]]:
    ddp = wrap(Model())
    called = Called()
    notice_failure(ddp, called.note)
    seen = []
    for accumulates, fails in ((False, False), (True, True), (False, True)):
        with ddp.no_sync() if accumulates else contextlib.nullcontext(), contextlib.suppress(ZeroDivisionError):
            ddp(torch.ones(2, 2), fails).sum().backward()
        seen.append(list(called.times))
    return seen


def test_ddp_models_notice_it_before_a_bucket_is_complete_but_not_while_they_accumulate(pool):
    assert pool.run(fail_in_ddp, num_ranks=1) == [[[], [], ["failure"]]]


def attach_and_close_several_times() -> int:
    """Return how many hooks the parameters have then, which are the same in all DDP models around them."""
    model = Model()
    for _ in range(3):
        headway.attach(wrap(model), fixed()).close()
    return sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters())


def test_closing_leaves_no_hook_on_a_parameter(pool):
    assert pool.run(attach_and_close_several_times, num_ranks=1) == [0]


def test_a_model_without_parameters_to_train_needs_no_hook():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    notice_failure(frozen, Called().note)()
