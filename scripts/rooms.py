"""Who imports whom: the rooms of btil as a picture, and circles between files.

    python scripts/rooms.py                          # docs/figures/rooms.png
    python scripts/rooms.py --package old/btil --out before.png

Imports inside functions count; those under `TYPE_CHECKING` do not, as they are for annotations.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Small helpers beside the rooms, which all may use.
HELPERS = "helpers"

Graph = dict[str, set[str]]


class Room(NamedTuple):
    """A room of the package.

    Attributes:
        files: Its modules.
        lines: Their lines.
    """

    files: int
    lines: int


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package, by its full name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that are made when code runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from _statements(node)


def imports(package: Path) -> Graph:
    """The modules that each module of a package imports from it."""
    known = modules(package)
    graph: Graph = {}
    for name, path in known.items():
        own = graph.setdefault(name, set())
        for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            else:
                wanted = [
                    f"{node.module}.{alias.name}"
                    if f"{node.module}.{alias.name}" in known
                    else str(node.module)
                    for alias in node.names
                ]
            own |= {one for one in wanted if one in known and one != name}
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """A circle in a graph, its first name again at the end; empty where there is none."""
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            found = follow(other, [*way, name])
            if found:
                return found
        done.add(name)
        return []

    for name in sorted(graph):
        found = follow(name, [])
        if found:
            return found
    return []


def room_of(module: str, package: Path) -> str:
    """The room that a module is in: its folder, the shell, or a helper beside them."""
    parts = module.split(".")
    if len(parts) == 1 or parts[1] in ("cli", "__main__"):
        return "shell" if len(parts) > 1 else package.name
    return parts[1] if (package / parts[1]).is_dir() else HELPERS


def rooms(package: Path) -> tuple[dict[str, Room], Counter[tuple[str, str]]]:
    """The rooms, and how many imports lead from one to another."""
    known, graph = modules(package), imports(package)
    sizes: dict[str, Room] = {}
    for name, path in known.items():
        room = sizes.get(room_of(name, package), Room(0, 0))
        lines = len(path.read_text(encoding="utf-8").splitlines())
        sizes[room_of(name, package)] = Room(room.files + 1, room.lines + lines)
    arrows = Counter(
        (room_of(name, package), room_of(other, package))
        for name, others in graph.items()
        for other in others
    )
    named = {p: n for p, n in arrows.items() if p[0] != p[1] and HELPERS not in p}
    return sizes, Counter({pair: n for pair, n in named.items() if package.name not in pair})


def levels(sizes: Mapping[str, Room], arrows: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """How high each room stands: above all that it imports, as far as that is possible."""
    height = dict.fromkeys(sizes, 0)
    for _ in sizes:
        for (above, below), number in arrows.items():
            if arrows.get((below, above), 0) <= number:  # of two that import each other, one way
                height[above] = min(max(height[above], height[below] + 1), len(sizes))
    return height


def told(arrows: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """The arrows without those that follow from others: what stands on what is plain then."""
    graph: Graph = {}
    for above, below in arrows:
        graph.setdefault(above, set()).add(below)

    def leads(start: str, end: str, seen: frozenset[str]) -> bool:
        ways = graph.get(start, set()) - seen
        return end in ways or any(leads(one, end, seen | {start}) for one in ways)

    return {
        (above, below): number
        for (above, below), number in arrows.items()
        if not any(leads(one, below, frozenset({above})) for one in graph[above] - {below})
    }


def draw(package: Path, out: Path) -> None:
    """Draw the rooms, each above what it imports; an arrow that leads upwards is red."""
    from matplotlib.figure import Figure

    sizes, arrows = rooms(package)
    shown = {name: room for name, room in sizes.items() if name not in (package.name, HELPERS)}
    height = levels(shown, arrows)
    rows: dict[int, list[str]] = {}
    for name in sorted(shown, key=lambda name: (height[name], name)):
        rows.setdefault(height[name], []).append(name)
    place = {
        name: (3.0 * (k - (len(row) - 1) / 2), 1.3 * level)
        for level, row in enumerate(rows.values())
        for k, name in enumerate(row)
    }
    figure = Figure(figsize=(7.5, 0.9 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    for (above, below), number in told(arrows).items():
        up = place[above][1] <= place[below][1]
        axes.annotate(
            "",
            xy=place[below],
            xytext=place[above],
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#d55e00" if up else "#8a94a0",
                "lw": 0.6 + 0.08 * min(number, 30),
                "shrinkA": 16,
                "shrinkB": 18,
                "connectionstyle": "arc3,rad=0.12",
            },
        )
    for name, (x, y) in place.items():
        files, lines = shown[name]
        axes.text(
            x,
            y,
            f"{name}\n{files} files, {lines:,} lines",
            ha="center",
            va="center",
            fontsize=9,
            linespacing=1.4,
            bbox={"boxstyle": "round,pad=0.4", "fc": "#eef3f8", "ec": "#0072b2", "lw": 0.8},
        )
    axes.set_xlim(min(x for x, _ in place.values()) - 1.7, max(x for x, _ in place.values()) + 1.7)
    axes.set_ylim(-0.7, max(y for _, y in place.values()) + 0.7)
    axes.set_axis_off()
    figure.savefig(out, dpi=150)


def main() -> None:
    """Draw the picture, print the rooms and a circle if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--package", type=Path, default=ROOT / "btil")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "rooms.png")
    arguments = parser.parse_args()
    draw(arguments.package, arguments.out)
    for name, (files, lines) in sorted(rooms(arguments.package)[0].items()):
        print(f"{name:16}{files:4} files{lines:8,} lines")
    print("circle:", " -> ".join(circle(imports(arguments.package))) or "none")


if __name__ == "__main__":
    main()
