"""``headway plan``: costs as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.table import Table

from headway.cli.plan import DEFAULT_RATIOS
from headway.cli.plan_gossip import as_json as gossip_as_json
from headway.cli.plan_gossip import cost_as_json, gossip_options
from headway.cli.plan_local import LOCAL_STEPS, local_options, note_on
from headway.cli.plan_local import as_json as local_as_json
from headway.compress import Shape
from headway.exchange import EXCHANGES, ComputeSpeed, CostModel, ExchangeCost, Plan, measure_speed
from headway.exchange.plan import Form
from headway.gossip import Topology
from headway.kernels import warm_up
from headway.network import Calibration, Cost, Link, Textbook
from headway.tuner import Comparison, Option
from headway.units import format_duration, format_rate

_BYTES_PER_PARAMETER = 4
_LONG = 4
_WIDE = 110
"""Width of a table that is not printed on a terminal."""
_LEGEND = (
    "MB: sent by the busiest rank; α and β: share of the time that is latency and bandwidth; CPU: processing of "
    "messages; work: compression and summation at the speed of this machine"
)


class Report(Protocol):
    """Predicted costs, for people or for programs."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""

    def show(self) -> None:
        """Print tables."""


def measured_speeds(exchanges: Iterable[str], num_ranks: int) -> dict[Form, ComputeSpeed]:
    """Measure how fast exchanges compute on this machine."""
    with Console(stderr=True).status("measuring how fast this machine compresses"):
        warm_up()
        plans = [Plan(exchange=exchange) for exchange in exchanges]
        return {plan.form: measure_speed(plan, num_ranks) for plan in plans}


class TextbookReport:
    """Costs of the textbook model: α and β alone."""

    def __init__(
        self, num_params: int, num_ranks: int, link: Link, ratios: Sequence[float] | None, compute_s: float
    ) -> None:
        self._compute_s = compute_s
        self._link = link
        self._params = num_params
        self._problems = [
            Textbook(num_ranks=num_ranks, num_bytes=_BYTES_PER_PARAMETER * num_params, ratio=ratio, link=link)
            for ratio in ratios or DEFAULT_RATIOS
        ]

    def as_json(self) -> dict[str, Any]:
        found = [self._problem_as_json(problem) for problem in self._problems]
        return found[0] if len(found) == 1 else {"model": "textbook", "ratios": found}

    def _problem_as_json(self, problem: Textbook) -> dict[str, Any]:
        return {
            "model": "textbook",
            "params": self._params,
            "workers": problem.num_ranks,
            "ratio": problem.ratio,
            "latency_s": self._link.latency_s,
            "bandwidth_bps": self._link.bandwidth_bps,
            "costs_ms": {name: 1e3 * seconds for name, seconds in problem.costs_s.items()},
            "best_compressed": problem.best_compressed,
            "var_all_gather_ms": 1e3 * problem.var_all_gather_s,
            "compute_ms": 1e3 * self._compute_s,
        }

    def show(self) -> None:
        table = self._table_of_parts() if len(self._problems) == 1 else self._table_of_ratios()
        first = self._problems[0]
        notes = [
            *(self._verdict(problem) for problem in self._problems),
            f"VAR takes {format_duration(first.var_all_gather_s)} more than STAR, which AR-Topk is here",
        ]
        _print(table, [*notes, *_compute_note(self._compute_s)])

    def _title(self) -> str:
        return _title(self._params, self._problems[0].num_ranks, self._link, "textbook")

    def _table_of_parts(self) -> Table:
        (problem,) = self._problems
        free = replace(problem, link=replace(self._link, latency_s=0.0))
        table = Table(title=f"{self._title()}, {100 * problem.ratio:g}%")
        for column in ("exchange", "ms", "MB waited for", "α", "β"):
            table.add_column(column, justify="left" if column == "exchange" else "right")
        for name, seconds in problem.costs_s.items():
            bytes_s = free.costs_s[name]
            share = bytes_s / seconds if seconds else 0.0
            num_bytes = bytes_s * self._link.bandwidth_bps / 8
            cells = [f"{1e3 * (seconds + self._compute_s):,.3f}", f"{num_bytes / 1e6:,.2f}"]
            style = "bold green" if name == problem.best_compressed else None
            table.add_row(name, *cells, f"{1 - share:.0%}", f"{share:.0%}", style=style)
        return table

    def _table_of_ratios(self) -> Table:
        table = Table(title=self._title())
        table.add_column("exchange")
        for problem in self._problems:
            table.add_column(f"ms at {100 * problem.ratio:g}%", justify="right")
        for name in self._problems[0].costs_s:
            cells = []
            for problem in self._problems:
                text = f"{1e3 * (problem.costs_s[name] + self._compute_s):,.3f}"
                cells.append(f"[bold green]{text}[/]" if problem.best_compressed == name else text)
            table.add_row(name, *cells)
        return table

    def _verdict(self, problem: Textbook) -> str:
        best = problem.best_compressed
        best_s = problem.costs_s[best] + self._compute_s
        compressed = [name for name in ("allgather_topk", "ar_topk_ring", "ar_topk_tree") if name != best]
        second = min(compressed, key=lambda name: problem.costs_s[name])
        second_s, ring_s = (problem.costs_s[name] + self._compute_s for name in (second, "dense_ring"))
        gains = f"{_times(second_s, best_s)} faster than {second}, {_times(ring_s, best_s)} than dense_ring"
        return f"{100 * problem.ratio:g}%: {best}, {format_duration(best_s)}: {gains}"


class ModelReport:
    """Costs of the headway model, which includes computation."""

    def __init__(
        self,
        numels: Sequence[int],
        num_ranks: int,
        link: Link,
        ratios: Sequence[float] | None,
        compute_s: float,
        topology: Topology,
    ) -> None:
        self._topology = topology
        self._shape = Shape(tuple(numels))
        self._model = CostModel(num_ranks, Calibration(link=link), measured_speeds(EXCHANGES, num_ranks))
        self._compute_s = compute_s
        self._comparisons = [Comparison(self._model, self._shape, ratio) for ratio in ratios or DEFAULT_RATIOS]
        self._local = [local_options(comparison.best) for comparison in self._comparisons]
        self._gossip = gossip_options(topology, self._shape.numel, self._model.calibration)

    def as_json(self) -> dict[str, Any]:
        link = self._model.calibration.link
        return {
            "model": "headway",
            "params": self._shape.numel,
            "workers": self._model.num_ranks,
            "latency_s": link.latency_s,
            "bandwidth_bps": link.bandwidth_bps,
            "overhead": asdict(self._model.calibration.overhead),
            "compute_ms": 1e3 * self._compute_s,
            "ratios": [
                {**self._comparison_as_json(comparison), "local": [local_as_json(option) for option in options]}
                for comparison, options in zip(self._comparisons, self._local, strict=True)
            ],
            "gossip": [gossip_as_json(option, self._topology) for option in self._gossip],
        }

    def _comparison_as_json(self, comparison: Comparison) -> dict[str, Any]:
        return {
            "ratio": comparison.ratio,
            "best": _name(comparison.best),
            "speedup_over_dense": (comparison.plain.cost.seconds + self._compute_s)
            / (comparison.best.cost.seconds + self._compute_s)
            if self._model.num_ranks > 1
            else 1.0,
            "options": [_option_as_json(option) for option in comparison.options],
        }

    def show(self) -> None:
        _print(self._table_of_options() if len(self._comparisons) == 1 else self._table_of_ratios(), self._notes())

    def _title(self) -> str:
        return _title(self._shape.numel, self._model.num_ranks, self._model.calibration.link, "headway")

    def _table_of_options(self) -> Table:
        (comparison,) = self._comparisons
        table = Table(title=f"{self._title()}, {100 * comparison.ratio:g}%", box=box.SIMPLE, pad_edge=False)
        for column in ("exchange", "algorithm", "ms", "MB", "α", "β", "CPU", "work"):
            table.add_column(column, justify="left" if len(column) > _LONG else "right", no_wrap=True)
        for exchange, best in comparison.best_of_each.items():
            table.add_section()
            options = [option for option in comparison.options if option.plan.exchange == exchange]
            for option in sorted(options, key=lambda option: option.cost.seconds):
                style = "bold green" if option is comparison.best else "bold" if option is best else None
                names = (option.plan.exchange, option.cost.algorithms[-1])
                table.add_row(*names, *_cells(option.cost, self._compute_s), style=style)
        table.add_section()
        for local in self._local[0]:
            names = (comparison.best.plan.exchange, f"local, H = {local.local_steps}")
            table.add_row(*names, *_cells(local.cost, self._compute_s))
        table.add_section()
        for gossip in self._gossip:
            table.add_row(gossip.name, f"gossip, {self._topology.name}", *_cells(gossip.cost, self._compute_s))
        return table

    def _table_of_ratios(self) -> Table:
        table = Table(title=self._title())
        table.add_column("exchange")
        for comparison in self._comparisons:
            table.add_column(f"ms at {100 * comparison.ratio:g}%", justify="right")
        for exchange in self._comparisons[-1].best_of_each:
            cells = []
            for comparison in self._comparisons:
                option = comparison.best_of_each[exchange]
                seconds = option.cost.seconds + self._compute_s
                text = f"{1e3 * seconds:,.1f} {option.cost.algorithms[-1]}"
                cells.append(f"[bold green]{text}[/]" if option is comparison.best else text)
            table.add_row(exchange, *cells)
        table.add_section()
        for local_steps, *options in zip(LOCAL_STEPS, *self._local, strict=True):
            cells = [f"{1e3 * (option.cost.seconds + self._compute_s):,.1f}" for option in options]
            table.add_row(f"local, H = {local_steps}", *cells)
        return table

    def _notes(self) -> list[str]:
        notes = []
        for comparison in self._comparisons:
            best, second, plain = comparison.best, comparison.second_best, comparison.plain
            best_s, second_s, plain_s = (o.cost.seconds + self._compute_s for o in (best, second, plain))
            gains = f"{_times(second_s, best_s)} faster than {_name(second)}, {_times(plain_s, best_s)} than plain DDP"
            notes.append(f"{100 * comparison.ratio:g}%: {_name(best)}, {format_duration(best_s)}: {gains}")
        if len(self._comparisons) == 1:
            notes.append(_LEGEND)
        others = [kind.description.label for kind in EXCHANGES.values() if not kind.description.is_candidate]
        notes.append(f"never recommended, since they preserve less of the gradient or are slower: {', '.join(others)}")
        return [*notes, note_on(self._local[0]), self._gossip_note(), *_compute_note(self._compute_s)]

    def _gossip_note(self) -> str:
        times = [f"{each.name} {format_duration(each.cost.seconds + self._compute_s)}" for each in self._gossip]
        listed = "" if len(self._comparisons) == 1 else f": {', '.join(times)}"
        return (
            f"gossip on a {self._topology}{listed}; it averages with neighbours only, so it is not compared with the "
            "others; all but choco overlap with the next forward and backward"
        )


def _compute_note(compute_s: float) -> list[str]:
    return [f"a step computes for {format_duration(compute_s)}, which is in all times"] if compute_s else []


def _times(slow_s: float, fast_s: float) -> str:
    return f"{slow_s / fast_s:.3g}x" if fast_s else "1x"


def _title(num_params: int, num_ranks: int, link: Link, model: str) -> str:
    where = f"{format_duration(link.latency_s)}, {format_rate(link.bandwidth_bps)}"
    return f"{num_params:,} parameters, {num_ranks} workers, {where} ({model} model)"


def _name(option: Option) -> str:
    return f"{option.plan.exchange} by {option.plan.algorithm}"


def _cells(cost: Cost, compute_s: float) -> list[str]:
    shares = [cost.latency_s, cost.bandwidth_s, cost.overhead_s, cost.compute_s]
    return [
        f"{1e3 * (cost.seconds + compute_s):,.1f}",
        f"{cost.wire_bytes / 1e6:,.1f}",
        *[f"{share / cost.seconds:.0%}" if cost.seconds else "-" for share in shares],
    ]


def _option_as_json(option: Option) -> dict[str, Any]:
    cost: ExchangeCost = option.cost
    return {
        "exchange": option.plan.exchange,
        "algorithms": list(cost.algorithms),
        **cost_as_json(cost),
    }


def _print(table: Table, notes: Sequence[str]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _WIDE))
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)
