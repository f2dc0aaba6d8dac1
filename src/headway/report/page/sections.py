"""The parts of a page in order; a part that no run has data for is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from headway.report.page.figures import Choice
from headway.report.page.learning import AGAINST
from headway.report.page.loading import asset
from headway.report.page.shown import Shown
from headway.report.page.tables import scrolling, table_of_decisions


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page, as HTML."""

    key: str
    title: str
    body: str
    note: str = ""

    @property
    def html(self) -> str:
        """The section, with its heading."""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return (
            f'<section id="{self.key}" aria-labelledby="{self.key}-title"><h2 id="{self.key}-title">'
            f"{escape(self.title)}</h2>{note}{self.body}</section>"
        )


def sections_of_all(figures: Mapping[str, Choice]) -> list[Section]:
    """Return what compares runs."""
    return [
        *_section(
            figures,
            ("loss", "accuracy"),
            key="learning",
            title="Learning",
            note="Thin lines are losses of training as they came, thick ones their running mean; diamonds are "
            "evaluations.",
            before=_against(),
        ),
        *_section(
            figures,
            ("traffic", "totals"),
            key="traffic",
            title="Bytes sent",
            note="By one rank. Pointing at a line tells the bytes of an exchange, and the plan.",
        ),
        *_section(
            figures,
            ("parts",),
            key="parts",
            title="Where the time of a step goes",
            note="The mean over ranks. Exchanges may hide behind the backward pass; own computing is the rest of the "
            "step.",
        ),
    ]


def sections_of_one(figures: Mapping[str, Choice], runs: Sequence[Shown], *, has_fronts: bool) -> list[Section]:
    """Return what shows one run at a time."""
    thinned = max((shown.curve.steps_each for shown in runs), default=1)
    means = f" A point is the mean of up to {thinned} steps." if thinned > 1 else ""
    return [
        *_section(
            figures,
            ("timeline",),
            key="timeline",
            title="Time line",
            note=f"Dotted lines across are switches of plan; pointing at a diamond tells why.{means}"
            if any(shown.run.decisions for shown in runs)
            else means.strip(),
        ),
        *([_fronts()] if has_fronts else []),
        *_decisions(runs),
        *_section(
            figures,
            ("ranks",),
            key="ranks",
            title="Waiting, by rank",
            note="A rank that waits little is the one that others wait for.",
        ),
    ]


def _section(
    figures: Mapping[str, Choice], names: Sequence[str], *, key: str, title: str, note: str, before: str = ""
) -> list[Section]:
    drawn = [name for name in names if figures[name].options]
    plots = "".join(_plot(name) for name in drawn)
    body = f'{before}<div class="plots plots-{len(drawn)}">{plots}</div>'
    return [Section(key=key, title=title, note=note, body=body)] if drawn else []


def _plot(name: str) -> str:
    missing = '<p class="none" hidden>Nothing is known of this for the run.</p>'
    return f'<figure><div class="plot" data-figure="{name}" role="img"></div>{missing}</figure>'


def _against() -> str:
    radios = "".join(
        f'<label><input type="radio" name="against" value="{key}"{" checked" if key == "time" else ""}>'
        f"<span>{escape(name)}</span></label>"
        for key, name in AGAINST.items()
    )
    return f'<fieldset class="segments"><legend>Against</legend>{radios}</fieldset>'


def _fronts() -> Section:
    return Section(
        key="fronts",
        title="Choices at each decision",
        note="Every point is a plan that no other beats; to the left steps are faster, further up they teach more. "
        "Rings mark the plan before and the one that was chosen.",
        body=asset("front.html"),
    )


def _decisions(runs: Sequence[Shown]) -> list[Section]:
    tables = [(place, table) for place, shown in enumerate(runs) if (table := table_of_decisions(shown))]
    if not tables:
        return []
    body = "".join(
        scrolling(table, f"Decisions of {runs[place].label}", f' data-run="{place}"') for place, table in tables
    )
    missing = '<p class="none" data-run-none hidden>This run has made no decisions.</p>'
    title = "Decisions in words" if any(shown.run.decisions for shown in runs) else "Notices"
    return [Section(key="decisions", title=title, body=body + missing)]
