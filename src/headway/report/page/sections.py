"""The sections of a page; sections without data are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from headway.report.page.figures import Choice
from headway.report.page.learning import AGAINST
from headway.report.page.styled_runs import StyledRun
from headway.report.page.tables import scrolling, table_of_decisions

_NO_DECISIONS = '<p class="none" data-run-none hidden>This run made no decisions.</p>'


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page, as HTML; without a body it is left out."""

    key: str
    title: str
    note: str = ""
    body: str

    @property
    def html(self) -> str:
        """The section with its heading."""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return (
            f'<section id="{self.key}" aria-labelledby="{self.key}-title"><h2 id="{self.key}-title">'
            f"{escape(self.title)}</h2>{note}{self.body}</section>"
        )


def asset(name: str) -> str:
    """Return the text of a file in the assets folder."""
    return (resources.files("headway.report.page") / "assets" / name).read_text(encoding="utf-8")


def sections_of_all(figures: Mapping[str, Choice]) -> list[Section]:
    """Return the sections that compare all runs."""
    learning = Section(
        key="learning",
        title="Learning",
        note="Thin lines are training losses, thick lines their running mean; diamonds are evaluations.",
        body=_plots(figures, "loss", "accuracy", before=_choice_of_axis()),
    )
    traffic = Section(
        key="traffic",
        title="Bytes sent",
        note="By one rank. Point at a line to see the bytes of an exchange, and the plan.",
        body=_plots(figures, "traffic", "totals"),
    )
    parts = Section(
        key="parts",
        title="Where the time of a step goes",
        note="Means over ranks. Exchanges may overlap with the backward pass; computation is the rest of a step.",
        body=_plots(figures, "parts"),
    )
    return [section for section in (learning, traffic, parts) if section.body]


def sections_of_one(figures: Mapping[str, Choice], runs: Sequence[StyledRun], *, has_fronts: bool) -> list[Section]:
    """Return the sections that show one run at a time."""
    has_decisions = any(run.record.decisions for run in runs)
    steps_each = max((run.curve.steps_each for run in runs), default=1)
    notes = ["Dotted lines mark changes of plan; point at a diamond to see why."] if has_decisions else []
    notes += [f"A point is the mean of up to {steps_each} steps."] if steps_each > 1 else []
    timeline = Section(key="timeline", title="Time line", note=" ".join(notes), body=_plots(figures, "timeline"))
    fronts = Section(
        key="fronts",
        title="Choices at each decision",
        note="Points are plans on the Pareto front: further left, steps are faster; further up, more of the gradient "
        "arrives. Rings mark the plan before and the chosen plan.",
        body=asset("front.html") if has_fronts else "",
    )
    decisions = Section(
        key="decisions", title="Decisions in words" if has_decisions else "Notices", body=_tables_of_decisions(runs)
    )
    ranks = Section(
        key="ranks",
        title="Time of a step, by rank",
        note="The rank that waits least is the one that the others wait for.",
        body=_plots(figures, "ranks"),
    )
    return [section for section in (timeline, fronts, decisions, ranks) if section.body]


def _plots(figures: Mapping[str, Choice], *names: str, before: str = "") -> str:
    """Return places for those figures that have data, or nothing."""
    drawn = [name for name in names if figures[name].options]
    missing = '<p class="none" hidden>There is no data for this run.</p>'
    plots = "".join(
        f'<figure><div class="plot" data-figure="{name}" role="img"></div>{missing}</figure>' for name in drawn
    )
    return f'{before}<div class="plots plots-{len(drawn)}">{plots}</div>' if drawn else ""


def _choice_of_axis() -> str:
    radios = "".join(
        f'<label><input type="radio" name="against" value="{key}"{" checked" if key == "time" else ""}>'
        f"<span>{escape(name)}</span></label>"
        for key, name in AGAINST.items()
    )
    return f'<fieldset class="segments"><legend>Against</legend>{radios}</fieldset>'


def _tables_of_decisions(runs: Sequence[StyledRun]) -> str:
    tables = [(place, table) for place, run in enumerate(runs) if (table := table_of_decisions(run))]
    regions = [scrolling(table, f"Decisions of {runs[place].label}", f' data-run="{place}"') for place, table in tables]
    return "".join([*regions, _NO_DECISIONS]) if tables else ""
