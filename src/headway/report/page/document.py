"""The report as one self-contained HTML file, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from headway._version import __version__
from headway.report.exchange_styles import style_sheet
from headway.report.page.figures import Choice, Figure, single
from headway.report.page.fronts import draw_fronts
from headway.report.page.learning import draw_accuracy, draw_loss
from headway.report.page.sections import Section, asset, sections_of_all, sections_of_one
from headway.report.page.step_time import draw_parts, draw_ranks, parts_of_ranks
from headway.report.page.styled_runs import StyledRun, style_runs
from headway.report.page.summary import summarise
from headway.report.page.tables import cards, table_of_runs
from headway.report.page.timeline import draw_timeline
from headway.report.page.traffic import draw_totals, draw_traffic
from headway.report.run import Run

_SHARED_COUNTS = {"num_ranks": "{:,} ranks", "num_parameters": "{:,} parameters", "batch_size": "batches of {:,}"}
_SCRIPTS = ("theme.js", "legend.js", "plots.js", "front.js", "page.js")


def write_page(runs: Sequence[Run], output: Path | str) -> None:
    """Write a page that shows runs and compares them. Needs ``pip install headway[plot]``.

    Args:
        runs: The runs, from `read_run`.
        output: The file to write; its folder is created if it does not exist.

    Raises:
        ValueError: There are no runs, or plotly is not installed.
    """
    if not runs:
        raise ValueError("there is no run to report: give one or more run directories")
    page = make_page(runs, _plotly())
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")


def make_page(runs: Sequence[Run], plotly: str) -> str:
    """Return the page, given the text of plotly.js."""
    styled, rows = style_runs(runs), summarise(runs)
    figures = _figures(styled)
    fronts = [draw_fronts(run) for run in styled]
    data = {
        "figures": {name: choice.as_dict() for name, choice in figures.items()},
        "fronts": fronts,
    }
    script = "(() => {\n" + "\n".join(asset(name) for name in _SCRIPTS) + "\n})();"
    of_all = sections_of_all(figures)
    of_one = sections_of_one(figures, styled, has_fronts=any(fronts))
    return Template(asset("page.html")).substitute(
        title=escape(_title(styled)),
        about=escape(_about(runs)),
        policy=_policy(plotly, script),
        style=asset("page.css") + style_sheet(),
        cards=f'<ul class="cards">{cards(rows, styled)}</ul>',
        table=table_of_runs(rows, styled) if len(rows) > 1 else "",
        contents=_contents([*of_all, *of_one]),
        all_sections="".join(section.html for section in of_all),
        picker=_picker(styled),
        run_sections="".join(section.html for section in of_one),
        version=escape(__version__),
        data=embed(data),
        plotly=plotly,
        script=script,
    )


def embed(data: Any) -> str:
    r"""Return data as JSON that cannot end the HTML element around it.

    >>> embed({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _figures(runs: Sequence[StyledRun]) -> dict[str, Choice]:
    return {
        "loss": draw_loss(runs),
        "accuracy": draw_accuracy(runs),
        "traffic": single(draw_traffic(runs)),
        "totals": single(draw_totals(runs)),
        "parts": single(draw_parts(runs) if len(runs) > 1 or not parts_of_ranks(runs[0]) else None),
        "timeline": _by_run([draw_timeline(run) for run in runs]),
        "ranks": _by_run([draw_ranks(run) for run in runs]),
    }


def _by_run(figures: Sequence[Figure | None]) -> Choice:
    options = {str(place): figure for place, figure in enumerate(figures) if figure is not None}
    return Choice(by="run", options=options)


def _title(runs: Sequence[StyledRun]) -> str:
    return " and ".join(run.label for run in runs) if len(runs) < 3 else f"{len(runs)} runs compared"


def _about(runs: Sequence[Run]) -> str:
    """Return what all runs have in common, in a line."""
    shared: dict[str, Any] = {
        name: value
        for name, value in runs[0].start.items()
        if value is not None and all(run.start.get(name) == value for run in runs)
    }
    facts = [f"{shared['model']} on {shared['workload']}"] if {"model", "workload"} <= shared.keys() else []
    for name, form in _SHARED_COUNTS.items():
        facts += [form.format(shared[name])] if isinstance(shared.get(name), int) else []
    facts += [f"network {shared['network']}"] if isinstance(shared.get("network"), str) else []
    if len(runs) == 1 and "started_at" in shared:
        facts.append(f"started {shared['started_at']}".replace("T", " ").replace("+00:00", " UTC"))
    return ", ".join(facts)


def _contents(sections: Sequence[Section]) -> str:
    return "".join(f'<li><a href="#{section.key}">{escape(section.title)}</a></li>' for section in sections)


def _picker(runs: Sequence[StyledRun]) -> str:
    """Return the menu of runs; the one with the most decisions is selected at first."""
    if len(runs) == 1:
        return ""
    first = max(range(len(runs)), key=lambda place: len(runs[place].record.decisions))
    options = "".join(
        f'<option value="{place}"{" selected" if place == first else ""}>{escape(run.label)}</option>'
        for place, run in enumerate(runs)
    )
    return f'<div class="picker"><label for="run">One run at a time</label><select id="run">{options}</select></div>'


def _policy(*scripts: str) -> str:
    """Return a content security policy that allows our scripts, by their hashes, and loads nothing."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ValueError("plotly is not installed: pip install 'headway[plot]'") from None
    return str(get_plotlyjs())
