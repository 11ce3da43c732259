"""Draw the model as a dynamic Bayesian network: two members, two steps."""

from pathlib import Path

FILE = Path(__file__).resolve().parent / "figures" / "made" / "network.svg"

# {node: (x, y, whether it is seen)}
NODES = {
    "$x^1_{t}$": (1.0, 3.0, False),
    "$a^1_{t}$": (1.9, 2.1, True),
    "$s_{t}$": (0.3, 1.0, True),
    "$a^2_{t}$": (1.9, -0.1, True),
    "$x^2_{t}$": (1.0, -1.0, False),
    "$x^1_{t+1}$": (4.6, 3.0, False),
    "$a^1_{t+1}$": (5.5, 2.1, True),
    "$s_{t+1}$": (3.9, 1.0, True),
    "$a^2_{t+1}$": (5.5, -0.1, True),
    "$x^2_{t+1}$": (4.6, -1.0, False),
}
# What an arrow means decides its colour: policies, moves of mental states, the task.
POLICY, TRANSITION, TASK = "#0072B2", "#D55E00", "#777777"
ARROWS = (
    *((f"$x^{k}_{{{t}}}$", f"$a^{k}_{{{t}}}$", POLICY) for k in (1, 2) for t in ("t", "t+1")),
    *((f"$s_{{{t}}}$", f"$a^{k}_{{{t}}}$", POLICY) for k in (1, 2) for t in ("t", "t+1")),
    *((f"$x^{k}_{{t}}$", f"$x^{k}_{{t+1}}$", TRANSITION) for k in (1, 2)),
    *((f"$a^{j}_{{t}}$", f"$x^{k}_{{t+1}}$", TRANSITION) for j in (1, 2) for k in (1, 2)),
    *(("$s_{t}$", f"$x^{k}_{{t+1}}$", TRANSITION) for k in (1, 2)),
    *(("$s_{t+1}$", f"$x^{k}_{{t+1}}$", TRANSITION) for k in (1, 2)),
    *((f"$a^{k}_{{t}}$", "$s_{t+1}$", TASK) for k in (1, 2)),
    ("$s_{t}$", "$s_{t+1}$", TASK),
)


def write() -> None:
    """Draw it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(6.4, 5.2))
    ax = figure.add_axes((0.02, 0.1, 0.96, 0.88))
    ax.set(xlim=(-0.3, 6.1), ylim=(-1.6, 3.6), aspect="equal")
    ax.axis("off")
    for begin, end, color in ARROWS:
        ax.annotate(
            "",
            NODES[end][:2],
            NODES[begin][:2],
            arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 19, "shrinkB": 19},
        )
    for name, (x, y, seen) in NODES.items():
        fill = "#d9d9d9" if seen else "white"
        ax.scatter([x], [y], s=1150, facecolor=fill, edgecolor="black", zorder=3)
        ax.text(x, y, name, ha="center", va="center", fontsize=13, zorder=4, color="black")
    told = [
        Line2D([], [], color=POLICY, label="policy"),
        Line2D([], [], color=TRANSITION, label="transition of a mental state"),
        Line2D([], [], color=TASK, label="the task: not learned"),
    ]
    figure.legend(handles=told, loc="lower center", ncols=3, frameon=False)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FILE, format="svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    write()
