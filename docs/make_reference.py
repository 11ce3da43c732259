"""Pages of the reference that are made from the code: names, options of methods, commands.

`make docs` writes them into `docs/reference/made/`, which is not kept in the repository.
"""

import inspect
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "reference" / "made"
MODULES = ("btil", "btil.analysis", "btil.domains", "btil.imitation", "btil.recordings")
# Classes that public functions give, which nobody makes by hand.
GIVEN = {
    "btil": (
        "btil.posterior.tracker.Tracker",
        "btil.posterior.numpyro_posterior.NumpyroPosterior",
        "btil.posterior.tracker.Belief",
        "btil.numpyro_forms.numpyro_model.EpisodeData",
    ),
    "btil.domains": ("btil.domains.gridworld.task.GridTask",),
}
# As what things are called in examples.
USUAL_NAMES = {
    "posterior": "btil.TeamPosterior",
    "demos": "btil.Demonstrations",
    "comparison": "btil.analysis.Comparison",
}
OTHERS = ("jax", "numpyro", "arviz", "matplotlib", "xarray", "pandas", "numpy")


def thing(name: str) -> Any:
    """What a dotted name stands for.

    Raises:
        AttributeError: If there is none.
    """
    import pkgutil

    try:
        return pkgutil.resolve_name(name)
    except ModuleNotFoundError as error:
        raise AttributeError(name) from error


@cache
def public_names() -> dict[str, str]:
    """{name where it is defined: public name}, and {last word: the shortest name that ends so}."""
    found: dict[str, str] = {}
    last_words: dict[str, set[str]] = {}
    for module in MODULES:
        for name in thing(module).__all__:
            value, public = thing(f"{module}.{name}"), f"{module}.{name}"
            if inspect.ismodule(value):
                continue
            last_words.setdefault(name, set()).add(public)
            if hasattr(value, "__qualname__"):
                defined = f"{value.__module__}.{value.__qualname__}"
                # `btil.compare` and `btil.analysis.compare` are one: the shorter name is told.
                found.setdefault(defined, public)
    for names in GIVEN.values():
        for name in names:
            last_words.setdefault(name.rpartition(".")[2], set()).add(name)
    found |= {word: min(names, key=len) for word, names in last_words.items()}
    return found


def public_name(name: str) -> str | None:
    """The public name of a class or function, or of a member of a public class."""
    known = public_names()
    if name in known:
        return known[name]
    owner, _, member = name.rpartition(".")
    return f"{known[owner]}.{member}" if owner in known else None


def target_of(code: str) -> str | None:
    """What code type such as `btil.fit(...)` or `posterior.decode` refers to; None: nothing."""
    found = re.fullmatch(r"([A-Za-z_][\w.]*)(\(.*\))?", code, flags=re.DOTALL)
    if found is None:
        return None
    name = found.group(1)
    first, _, rest = name.partition(".")
    if rest and first in USUAL_NAMES:
        return f"{USUAL_NAMES[first]}.{rest}"
    if first in ("btil", *OTHERS) and rest:
        return name
    return public_name(name)


# ---------------------------------------------------------------------- names


def is_tuple(value: Any) -> bool:
    """Whether a class is a NamedTuple: what it has of `tuple` is not worth a line."""
    return issubclass(value, tuple)


def directive(name: str) -> list[str]:
    """How a name is documented, in reStructuredText."""
    value = thing(name)
    if inspect.isclass(value):
        lines = [f".. autoclass:: {name}", "   :members:"]
        if not is_tuple(value) and not issubclass(value, Exception):
            lines.append("   :inherited-members: Distribution")
        return [*lines, ""]
    if callable(value):
        return [f".. autofunction:: {name}", ""]
    # The docstring of such an object is that of its type.
    return [f".. py:data:: {name}", "", f"   {first_sentence(name)}", ""]


def first_sentence(name: str) -> str:
    """The first line of a docstring; of what has none, what is in it."""
    value = thing(name)
    if isinstance(value, dict):
        return f"{', '.join(map(repr, value))}."
    return (inspect.getdoc(thing(name)) or "").split("\n\n")[0].replace("\n", " ")


def page_of(module: str) -> str:
    """A page on the names of a module: a list of them, and each one's docstring."""
    names = [
        f"{module}.{name}"
        for name in sorted(thing(module).__all__, key=str.lower)
        if not inspect.ismodule(thing(f"{module}.{name}"))
    ]
    lines = [
        module,
        "=" * len(module),
        "",
        *described(module),
        ".. list-table::",
        "   :widths: 35 65",
        "",
    ]
    for name in names:
        lines += [
            f"   * - `{name.removeprefix(module + '.')} <{name}>`",
            f"     - {first_sentence(name)}",
        ]
    lines += ["", f".. py:module:: {module}", f".. currentmodule:: {module}", ""]
    for name in names:
        lines += directive(name)
    if module in GIVEN:
        title = "What these give"
        lines += [title, "-" * len(title), ""]
        for name in GIVEN[module]:
            lines += directive(name)
    return "\n".join(lines)


def described(module: str) -> list[str]:
    """The docstring of a module."""
    return [*(inspect.getdoc(thing(module)) or "").splitlines(), ""]


# ---------------------------------------------------------------------- options


def arguments_told(function: Any) -> dict[str, str]:
    """{argument: what its docstring says of it}."""
    text = inspect.getdoc(function) or ""
    found = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, flags=re.DOTALL | re.MULTILINE)
    if found is None:
        return {}
    told = re.findall(
        r"^    \*{0,2}(\w+): (.*?)(?=^    \S|\Z)", found.group(1), flags=re.DOTALL | re.MULTILINE
    )
    return {name: " ".join(words.split()) for name, words in told}


def options_page() -> str:
    """Options of each method of inference: name, default, meaning."""
    from btil.inference.method import fit_function, method_names, method_of
    from btil.posterior.fit import fit, method_options

    def row(*cells: str) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [
        "# Options of the methods",
        "",
        "`btil.fit(model, demos, method=..., **options)` takes these. In a shell an option is "
        "`--num-samples 1000`; for `btil.compare` and `btil compare` it goes to every method that "
        "has it. This page is made from the code.",
        "",
        "## All methods",
        "",
        row("option", "default", "meaning"),
        row("---", "---", "---"),
    ]
    told = arguments_told(fit)
    for name, parameter in inspect.signature(fit).parameters.items():
        if name in ("seed", "progress", "dtype", "checkpoint", "resume"):
            lines.append(row(f"`{name}`", f"`{parameter.default!r}`", told[name]))
    for method in method_names():
        told = arguments_told(fit_function(method))
        about = method_of(method)
        lines += ["", f"## {method}", "", f"{about.words[0].upper()}{about.words[1:]}.", ""]
        options = method_options(method)
        if not options:
            lines.append("No options of its own.")
            continue
        lines += [row("option", "default", "meaning"), row("---", "---", "---")]
        for name, default in options.items():
            lines.append(row(f"`{name}`", f"`{default!r}`", told.get(name, "")))
    return "\n".join([*lines, ""])


# ---------------------------------------------------------------------- shell


def shell_page() -> str:
    """The help of every command."""
    import typer

    from btil.cli import app

    lines = [
        "# The shell",
        "",
        "Results go to standard output; progress, warnings and errors to standard error. Exit "
        "codes: 0 done, 1 a fit that failed, 2 bad usage or bad input, 130 interrupted. This page "
        "is made from the code: it is what `--help` prints.",
        "",
    ]

    def tell(command: Any, words: list[str], above: Any) -> None:
        context = command.context_class(
            command, info_name=words[-1], parent=above, **command.context_settings
        )
        context.terminal_width = 88
        lines.extend(
            [f"## {' '.join(words)}", "", "```text", command.get_help(context).rstrip(), "```", ""]
        )
        for name, child in getattr(command, "commands", {}).items():
            tell(child, [*words, name], context)

    tell(typer.main.get_command(app), ["btil"], None)
    return "\n".join(lines)


# ---------------------------------------------------------------------- pages from elsewhere

# Files of the repository that are pages of the site, by the page that shows them.
ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "benchmarks/README.md": "reference/made/speed.md",
    "CONTRIBUTING.md": "reference/made/contributing.md",
    "CHANGES.md": "reference/made/changes.md",
}


def with_links(text: str, file: str, page: str) -> str:
    """Markdown of a file as a page: its links lead to pages, or to nothing but their text.

    Args:
        text: The Markdown.
        file: Where it lies in the repository.
        page: The page that shows it, in `docs/`.
    """

    def mended(found: re.Match[str]) -> str:
        mark, words, link, title = found.groups()
        path, hash_, place = link.partition("#")
        if "://" in link or not path:
            return found.group(0)
        target = os.path.normpath(Path(file).parent / path)
        if target in ELSEWHERE:
            target = f"docs/{ELSEWHERE[target]}"
        if not target.startswith("docs/"):
            return words
        path = os.path.relpath(target, Path("docs", page).parent)
        return f"{mark}[{words}]({path}{hash_}{place}{title})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)((?: \"[^\"]*\")?)\)", mended, text)


def pages() -> dict[str, str]:
    """{file: text} of all pages."""
    return {
        **{
            page.rpartition("/")[2]: with_links((ROOT / file).read_text("utf-8"), file, page)
            for file, page in ELSEWHERE.items()
            if (ROOT / file).is_file()
        },
        **{f"{module}.rst": page_of(module) for module in MODULES},
        "options.md": options_page(),
        "shell.md": shell_page(),
    }


def write() -> None:
    """Write the pages; one that says the same is left alone, so that a second build is quick."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
