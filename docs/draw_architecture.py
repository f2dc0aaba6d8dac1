"""Draws the rooms of Headway and the imports between them, from the code as it is.

python docs/draw_architecture.py            writes docs/pictures/architecture.svg
python docs/draw_architecture.py --check    exits with 1 if the picture is stale
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import grimp

PICTURE = Path(__file__).parent / "pictures" / "architecture.svg"
ROLES = {
    "cli": "one file a subcommand",
    "integrations": "Lightning, Accelerate, HF Trainer",
    "train": "reference workloads",
    "lab": "emulated hosts and links",
    "report": "run directories, HTML page",
    "ddp": "attach(), the DDP hook",
    "local": "steps between exchanges",
    "gossip": "decentralised training",
    "averaging": "engine, records, checkpoints",
    "replica": "a model without DDP",
    "tuner": "the control loop, policies",
    "exchange": "how a bucket is averaged",
    "network": "link, costs, estimator",
    "elastic": "ranks come and go",
    "collectives": "schedules as data",
    "compress": "compressors, error feedback",
    "kernels": "loops over flat arrays",
}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 208, 46, 34, 40, 16
STYLE = """
  .room { fill: #eef3f8; stroke: #43617f; stroke-width: 1.2; }
  .name { font: 600 14px sans-serif; fill: #1d2b3a; }
  .role { font: 11px sans-serif; fill: #43617f; }
  .import { fill: none; stroke: #7f95ab; stroke-width: 1.3; marker-end: url(#arrow); }
"""


def imports_between_rooms() -> dict[str, set[str]]:
    """Return which rooms each room imports, directly or through others."""
    graph = grimp.build_graph("headway")
    rooms = {each.removeprefix("headway.") for each in graph.find_children("headway") if graph.find_children(each)}
    if unknown := rooms - set(ROLES):
        sys.exit(f"tell in ROLES what is in {', '.join(sorted(unknown))}")
    found: dict[str, set[str]] = {room: set() for room in ROLES}
    for room in ROLES:
        for other in ROLES:
            if room != other and graph.chain_exists(f"headway.{room}", f"headway.{other}", as_packages=True):
                found[room].add(other)
    return found


def without_shortcuts(reached: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return only the arrows that no longer path implies."""
    return {room: {a for a in to if not any(a in reached[b] for b in to if b != a)} for room, to in reached.items()}


def rows_of(reached: dict[str, set[str]]) -> list[list[str]]:
    """Return the rooms from top to bottom: a room stands below all that reach it."""
    level: dict[str, int] = {}
    while len(level) < len(reached):
        for room in reached:
            above = [other for other, to in reached.items() if room in to]
            if room not in level and all(other in level for other in above):
                level[room] = 1 + max((level[other] for other in above), default=-1)
    return [[room for room in ROLES if level[room] == number] for number in range(1 + max(level.values()))]


def draw(rows: list[list[str]], arrows: dict[str, set[str]]) -> str:
    """Return the picture."""
    widest = max(map(len, rows))
    total = MARGIN * 2 + widest * WIDTH + (widest - 1) * GAP_X
    corner = {}
    for y, row in enumerate(rows):
        left = (total - len(row) * WIDTH - (len(row) - 1) * GAP_X) / 2
        for x, room in enumerate(row):
            corner[room] = (left + x * (WIDTH + GAP_X), MARGIN + y * (HEIGHT + GAP_Y))
    lines = []
    for room, to in arrows.items():
        for other in sorted(to):
            (x1, y1), (x2, y2) = corner[room], corner[other]
            start, end = (x1 + WIDTH / 2, y1 + HEIGHT), (x2 + WIDTH / 2, y2 - 3)
            bend = (end[1] - start[1]) / 2
            lines.append(
                f'<path class="import" d="M{start[0]:.0f},{start[1]:.0f} C{start[0]:.0f},{start[1] + bend:.0f} '
                f'{end[0]:.0f},{end[1] - bend:.0f} {end[0]:.0f},{end[1]:.0f}"/>'
            )
    for room, (x, y) in corner.items():
        lines += [
            f'<rect class="room" x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>',
            f'<text class="name" x="{x + 12:.0f}" y="{y + 20:.0f}">{escape(room)}</text>',
            f'<text class="role" x="{x + 12:.0f}" y="{y + 36:.0f}">{escape(ROLES[room])}</text>',
        ]
    height = MARGIN * 2 + len(rows) * HEIGHT + (len(rows) - 1) * GAP_Y
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total:.0f} {height:.0f}" role="img" '
        f'aria-label="The rooms of Headway; arrows are imports">\n<style>{STYLE}</style>\n'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#7f95ab"/></marker></defs>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def main() -> int:
    """Write the picture, or check it."""
    reached = imports_between_rooms()
    picture = draw(rows_of(reached), without_shortcuts(reached))
    if "--check" in sys.argv[1:]:
        is_stale = not PICTURE.exists() or PICTURE.read_text() != picture
        print(f"{PICTURE.name} is {'stale: run python docs/draw_architecture.py' if is_stale else 'up to date'}")
        return int(is_stale)
    PICTURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
