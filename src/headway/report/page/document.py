"""One file of HTML with everything in it: it opens without a network, and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from headway._version import __version__
from headway.report.page.figures import Choice, Figure, single
from headway.report.page.fronts import draw_fronts
from headway.report.page.learning import draw_accuracy, draw_loss
from headway.report.page.loading import asset
from headway.report.page.sections import Section, sections_of_all, sections_of_one
from headway.report.page.shown import Shown, show
from headway.report.page.summary import summarise
from headway.report.page.tables import cards, table_of_runs
from headway.report.page.timeline import draw_timeline
from headway.report.page.traffic import draw_totals, draw_traffic
from headway.report.page.waiting import draw_parts, draw_ranks, parts_of_ranks
from headway.report.run import Run

_SCRIPTS = ("theme.js", "legend.js", "plots.js", "front.js", "page.js")


def write_page(runs: Sequence[Run], output: Path | str) -> None:
    """Write a page that shows runs, and compares them if they are several. Needs ``pip install headway[plot]``.

    Args:
        runs: As `read_run` has them.
        output: Where to; its folder is made if it is not there.

    Raises:
        ValueError: There is no run, or plotly is not installed.
    """
    if not runs:
        raise ValueError("there is no run to report: give one or more run directories")
    page = make_page(runs, _plotly())
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")


def make_page(runs: Sequence[Run], plotly: str) -> str:
    """Return the page, given the text of plotly.js."""
    shown, rows = show(runs), summarise(runs)
    figures = _figures(shown)
    fronts = [draw_fronts(each) for each in shown]
    data = {
        "figures": {name: choice.as_dict() for name, choice in figures.items()},
        "fronts": [each and each.as_dict() for each in fronts],
    }
    script = "(() => {\n" + "\n".join(asset(name) for name in _SCRIPTS) + "\n})();"
    of_all = sections_of_all(figures)
    of_one = sections_of_one(figures, shown, has_fronts=any(fronts))
    return Template(asset("page.html")).substitute(
        title=escape(_title(shown)),
        about=escape(_about(runs)),
        policy=_policy(plotly, script),
        style=asset("page.css"),
        cards=f'<ul class="cards">{cards(rows, shown)}</ul>',
        table=table_of_runs(rows, shown) if len(rows) > 1 else "",
        contents=_contents([*of_all, *of_one]),
        all_sections="".join(section.html for section in of_all),
        picker=_picker(shown),
        run_sections="".join(section.html for section in of_one),
        version=escape(__version__),
        data=embed(data),
        plotly=plotly,
        script=script,
    )


def embed(data: Any) -> str:
    r"""Return data as JSON that cannot end the element it stands in.

    >>> embed({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _figures(shown: Sequence[Shown]) -> dict[str, Choice]:
    return {
        "loss": draw_loss(shown),
        "accuracy": draw_accuracy(shown),
        "traffic": single(draw_traffic(shown)),
        "totals": single(draw_totals(shown)),
        "parts": single(draw_parts(shown) if len(shown) > 1 or not parts_of_ranks(shown[0]) else None),
        "timeline": _by_run([draw_timeline(each) for each in shown]),
        "ranks": _by_run([draw_ranks(each) for each in shown]),
    }


def _by_run(figures: Sequence[Figure | None]) -> Choice:
    options = {str(place): figure for place, figure in enumerate(figures) if figure is not None}
    return Choice(by="run", options=options)


def _title(shown: Sequence[Shown]) -> str:
    return " and ".join(each.label for each in shown) if len(shown) < 3 else f"{len(shown)} runs compared"


def _about(runs: Sequence[Run]) -> str:
    """Return what all runs have in common, in a line."""
    same: Mapping[str, Any] = {
        name: value
        for name, value in runs[0].start.items()
        if value is not None and all(run.start.get(name) == value for run in runs)
    }
    said = [f"{same['model']} on {same['workload']}"] if {"model", "workload"} <= same.keys() else []
    for name, words in (
        ("num_ranks", "{:,} ranks"),
        ("num_parameters", "{:,} parameters"),
        ("batch_size", "batches of {:,}"),
    ):
        said += [words.format(same[name])] if isinstance(same.get(name), int) else []
    said += [f"network {same['network']}"] if isinstance(same.get("network"), str) else []
    said += (
        [f"started {same['started_at']}".replace("T", " ").replace("+00:00", " UTC")]
        if len(runs) == 1 and "started_at" in same
        else []
    )
    return ", ".join(said)


def _contents(sections: Sequence[Section]) -> str:
    return "".join(f'<li><a href="#{section.key}">{escape(section.title)}</a></li>' for section in sections)


def _picker(shown: Sequence[Shown]) -> str:
    """Return the choice of a run: the one with the most decisions is shown first."""
    if len(shown) == 1:
        return ""
    first = max(range(len(shown)), key=lambda place: len(shown[place].run.decisions))
    options = "".join(
        f'<option value="{place}"{" selected" if place == first else ""}>{escape(each.label)}</option>'
        for place, each in enumerate(shown)
    )
    return f'<div class="picker"><label for="run">One run at a time</label><select id="run">{options}</select></div>'


def _policy(*scripts: str) -> str:
    """Return a content security policy: our scripts may run, by their hashes, and nothing may be loaded."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ValueError("plotly is not installed: pip install 'headway[plot]'") from None
    return str(get_plotlyjs())
