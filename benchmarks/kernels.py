"""Benchmark of the kernels, against the speed of memory and against the usual torch operations.

All contenders of a row alternate in one process, and the figure is the ratio of their median times: absolute times on a
shared machine vary from run to run, ratios hardly do. Run by ``make bench``.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numba
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from headway import kernels
from headway.kernels.threshold import Threshold

SIZES = {"1M": 1_000_000, "11M": 11_000_000, "25M": 25_000_000, "100M": 100_000_000}
RATIOS = (0.1, 0.01, 0.001)
LARGEST_SHIFT = 4096
NUM_WARM_STEPS = 12
NUM_ROUNDS = 15

FUSED = "fused top-k, remembered threshold"
FASTER = "the same, against add_, topk, gather, zero"
MOMENTUM = "fused top-k with momentum correction, against without"
COUNTED = "fused top-k, no remembered threshold"
CURVES = "add with both gain curves, against three passes"
INDEX = "bytes per index"
SCATTER = "decode + scatter-add, against index_add_"
QUANTIZE = "8-bit quantise + pack, against clone"

AT_MOST = {
    FUSED: {0.1: 3.5, 0.01: 2.2, 0.001: 1.5},
    COUNTED: {0.1: 6.0, 0.01: 5.0, 0.001: 5.0},
    MOMENTUM: {0.01: 1.6},
    INDEX: {0.1: 0.66, 0.01: 1.08, 0.001: 1.5},
    SCATTER: {0.01: 1.0},
    CURVES: {None: 1.0},
    QUANTIZE: {None: 4.0},
}
AT_LEAST = {FASTER: {0.1: 15.0, 0.01: 20.0, 0.001: 20.0}}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ratio of times: a kernel to its baseline, or in the ``FASTER`` row the baseline to the kernel."""

    what: str
    size: str
    data: str
    num_threads: int
    ratio: float | None
    figure: float
    ms: float | None = None
    baseline_ms: float | None = None


def gaussian(numel: int) -> Tensor:
    """Return standard normal entries."""
    return torch.randn(numel)


def heavy_tailed(numel: int) -> Tensor:
    """Return Student's t with two degrees of freedom, whose variance is infinite."""
    return torch.randn(numel) / torch.empty(numel).exponential_().sqrt_()


DATA = {"gaussian": gaussian, "heavy-tailed": heavy_tailed}


def time_alternately(
    calls: list[Callable[[int], object]],
    rounds: int = NUM_ROUNDS,
    prepare: Callable[[int], object] = lambda _number: None,
) -> list[float]:
    """Call each in turn, so that noise affects all of them alike; return the median milliseconds of each.

    What is to be prepared for a call is done before each of them, and takes no time.
    """
    times: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for call, spent in zip(calls, times, strict=True):
            prepare(number)
            start = time.perf_counter()
            call(number)
            spent.append(1e3 * (time.perf_counter() - start))
    return [median(spent) for spent in times]


def plain_step(residual: Tensor, gradient: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Run error feedback as it is usually implemented."""
    residual.add_(gradient)
    indices = torch.topk(residual.abs(), k, sorted=False).indices
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def bench_feedback(pool: Tensor, ratio: float, where: dict[str, object]) -> list[Row]:
    """Time the fused step with and without a remembered threshold, and the plain one, against ``add_`` alone.

    Each step's gradient is another window of the pool of numbers: as good as new ones, at no cost.
    """
    numel = pool.numel() - LARGEST_SHIFT
    k = round(numel * ratio)
    residual, plain = torch.zeros(numel), torch.zeros(numel)
    remembering, counting = kernels.Memory(numel), kernels.Memory(numel)

    def gradient(number: int) -> Tensor:
        shift = 16 * (7 * number % (LARGEST_SHIFT // 16))
        return pool[shift : shift + numel]

    def count(number: int) -> None:
        counting.threshold = Threshold()
        counting.select(gradient(number), k)

    calls: list[Callable[[int], object]] = [
        lambda number: residual.add_(gradient(number)),
        lambda number: remembering.select(gradient(number), k),
        count,
    ]
    time_alternately([lambda number, call=call: call(number + NUM_ROUNDS) for call in calls], NUM_WARM_STEPS)
    add_ms, fused_ms, count_ms = time_alternately(calls)
    fused_again_ms, plain_ms = time_alternately(
        [calls[1], lambda number: plain_step(plain, gradient(number), k)], rounds=3
    )

    def row(what: str, figure: float, ms: float, baseline_ms: float) -> Row:
        return Row(what=what, ratio=ratio, figure=figure, ms=ms, baseline_ms=baseline_ms, **where)

    return [
        row(FUSED, fused_ms / add_ms, fused_ms, add_ms),
        row(FASTER, plain_ms / fused_again_ms, fused_again_ms, plain_ms),
        row(COUNTED, count_ms / add_ms, count_ms, add_ms),
        Row(what=INDEX, ratio=ratio, figure=kernels.index_bytes(numel, k) / k, **where),
    ]


def bench_momentum(pool: Tensor, ratio: float, where: dict[str, object]) -> Row:
    """Time the fused step with a velocity against the one without; both leave the old residual in the gradient."""
    numel = pool.numel() - LARGEST_SHIFT
    k, gradient = round(numel * ratio), torch.empty(numel)
    plain = kernels.Memory(numel)
    corrected = kernels.Memory(numel, velocity=kernels.Velocity.zeros(numel, kernels.Momentum(0.9)))

    def copy(number: int) -> None:
        shift = 16 * (7 * number % (LARGEST_SHIFT // 16))
        gradient.copy_(pool[shift : shift + numel])

    calls: list[Callable[[int], object]] = [
        lambda _: corrected.select(gradient, k, undo=gradient),
        lambda _: plain.select(gradient, k, undo=gradient),
    ]
    time_alternately(calls, 3 * NUM_WARM_STEPS, copy)  # a velocity takes longer to become steady
    corrected_ms, plain_ms = time_alternately(calls, prepare=copy)
    figure = corrected_ms / plain_ms
    return Row(what=MOMENTUM, ratio=ratio, figure=figure, ms=corrected_ms, baseline_ms=plain_ms, **where)


def bench_curves(gradient: Tensor, where: dict[str, object]) -> Row:
    """Time adding a gradient with both gain curves against the three separate passes with the same results."""
    fused, separate = kernels.Memory(gradient.numel()), kernels.Memory(gradient.numel())

    def three_passes(_: int) -> None:
        kernels.gain_curve(gradient)
        separate.accumulate(gradient)
        kernels.gain_curve(separate.residual)

    calls: list[Callable[[int], object]] = [
        lambda _: fused.accumulate_with_gain_curves(gradient),
        three_passes,
    ]
    time_alternately(calls, rounds=3)
    fused_ms, separate_ms = time_alternately(calls)
    return Row(what=CURVES, ratio=None, figure=fused_ms / separate_ms, ms=fused_ms, baseline_ms=separate_ms, **where)


def bench_scatter(gradient: Tensor, ratio: float, where: dict[str, object]) -> Row:
    """Time decoding a message and adding it, against torch's own addition of decoded indices."""
    numel, dense = gradient.numel(), torch.zeros(gradient.numel())
    selection = kernels.Memory(numel).select(gradient, round(numel * ratio))
    indices, values, k = selection.indices, selection.values, selection.indices.numel()
    message = torch.empty(kernels.message_bytes(numel, k, "fp32"), dtype=torch.uint8)
    num_index_bytes, wide = kernels.index_bytes(numel, k), indices.long()
    kernels.encode_indices(indices, numel, out=message[:num_index_bytes])
    message[num_index_bytes:] = selection.payload

    def ours(_: int) -> None:
        kernels.add_message(message, k, "fp32", out=dense)

    calls: list[Callable[[int], object]] = [ours, lambda _: dense.index_add_(0, wide, values)]
    time_alternately(calls, rounds=3)
    ours_ms, theirs_ms = time_alternately(calls)
    return Row(what=SCATTER, ratio=ratio, figure=ours_ms / theirs_ms, ms=ours_ms, baseline_ms=theirs_ms, **where)


def bench_quantize(gradient: Tensor, where: dict[str, object]) -> Row:
    """Time the 8-bit stochastic quantiser against a copy into a kept buffer."""
    kept = torch.empty_like(gradient)
    message = torch.empty(kernels.quantized_bytes(gradient.numel(), 8), dtype=torch.uint8)
    calls: list[Callable[[int], object]] = [
        lambda number: kernels.quantize(gradient, 8, kernels.noise_key(0, number, 0), out=message),
        lambda _: kept.copy_(gradient),
    ]
    time_alternately(calls, rounds=3)
    ours_ms, copy_ms = time_alternately(calls)
    return Row(what=QUANTIZE, ratio=None, figure=ours_ms / copy_ms, ms=ours_ms, baseline_ms=copy_ms, **where)


def bench_all(sizes: list[str]) -> list[Row]:
    """Run every row for every size, distribution and number of threads."""
    rows: list[Row] = []
    cases = [(size, data, threads) for size in sizes for data in DATA for threads in (1, 2)]
    for size, data, num_threads in track(cases, description="kernels", transient=True):
        torch.manual_seed(0)
        torch.set_num_threads(num_threads)
        pool = DATA[data](SIZES[size] + LARGEST_SHIFT)
        gradient = pool[: SIZES[size]]
        where: dict[str, object] = {"size": size, "data": data, "num_threads": num_threads}
        for ratio in RATIOS:
            rows += bench_feedback(pool, ratio, where)
        rows += [
            bench_momentum(pool, 0.01, where),
            bench_scatter(gradient, 0.01, where),
            bench_curves(gradient, where),
            bench_quantize(gradient, where),
        ]
    return rows


def verdict(row: Row) -> str:
    """Return the limit of a row and whether it holds; limits are set for 25M entries and one thread."""
    if row.size != "25M" or row.num_threads != 1:
        return ""
    if row.what in AT_LEAST:
        limit = AT_LEAST[row.what][row.ratio]
        return f">= {limit:g}: {'holds' if row.figure >= limit else 'MISSED'}"
    limit = AT_MOST[row.what][row.ratio]
    return f"<= {limit:g}: {'holds' if row.figure <= limit else 'MISSED'}"


def show(rows: list[Row], console: Console) -> None:
    """Print one table for each size and number of threads."""
    for size, num_threads in dict.fromkeys((row.size, row.num_threads) for row in rows):
        table = Table("what", "data", "ratio", "figure", "ms", "baseline ms", "limit")
        table.title = f"{size}, threads: {num_threads}"
        for row in rows:
            if (row.size, row.num_threads) == (size, num_threads):
                numbers = ["" if ms is None else f"{ms:.2f}" for ms in (row.ms, row.baseline_ms)]
                ratio = "" if row.ratio is None else f"{row.ratio:.1%}"
                table.add_row(row.what, row.data, ratio, f"{row.figure:.2f}", *numbers, verdict(row))
        console.print(table)


def main(
    sizes: Annotated[str, typer.Option(help=f"Comma-separated, of {', '.join(SIZES)}.")] = ",".join(SIZES),
    json_path: Annotated[Path, typer.Option("--json", help="Where to write the figures.")] = Path("build/kernels.json"),
) -> None:
    """Benchmark the kernels; about six minutes for all sizes."""
    chosen = sizes.split(",")
    unknown = [size for size in chosen if size not in SIZES]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: must be of {', '.join(SIZES)}", param_hint="--sizes")
    console = Console(width=140)
    kernels.warm_up()
    rows = bench_all(chosen)
    show(rows, console)
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "numba": numba.__version__,
    }
    json_path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    console.print(f"written to {json_path}")


if __name__ == "__main__":
    typer.run(main)
