"""How Sphinx builds the site: `make docs`.

Pages are Markdown. Reference pages of names, options and commands are made from the code before the
build (`make_reference.py`). A name in code type, such as `btil.fit` or `jax.jit`, is a link to what
it names.
"""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pygments.lexers import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER)]

import draw_network
import make_inventories
import make_reference

import btil

project = "btil"
author = "The btil authors"
version = release = btil.__version__
html_title = f"btil {version}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Nothing is fetched from elsewhere: the pages can be read from a disk.
html_copy_source = False
html_show_sourcelink = False
# From a disk a page cannot read others, so results are titles and places.
html_show_search_summary = False
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
]
root_doc = "index"
exclude_patterns = ["build"]
default_role = "py:obj"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
# The docstrings tell types themselves; jaxtyping's "*agents" is not emphasis.
napoleon_attr_annotations = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Source"]

# Where the names of other libraries are explained; the lists of names are in the repository.
intersphinx_mapping = {
    name: (address, str(make_inventories.FOLDER / f"{name}.inv"))
    for name, address in make_inventories.ADDRESSES.items()
}
intersphinx_disabled_reftypes = []


class LinkedNames(SphinxTransform):
    """Code type that names something becomes a reference to it, where there is such a thing."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        """Wrap every such literal; what resolves to nothing stays as it is."""
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, addnodes.pending_xref | nodes.reference | nodes.title):
                continue
            target = make_reference.target_of(literal.astext())
            if target is None:
                continue
            reference = addnodes.pending_xref(
                "", refdomain="py", reftype="obj", reftarget=target, refexplicit=False
            )
            reference["refdoc"] = self.env.current_document.docname
            literal.replace_self(reference)
            reference += literal


def resolve_public(app: Sphinx, env: Any, node: Any, contents: Any) -> Any:
    """A reference to a name where it is defined, or to its last word, leads to the public name."""
    if node.get("refdomain") != "py":
        return None
    public = make_reference.public_name(node["reftarget"])
    if public is None:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, contents)


def mend_links(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to files of the repository that are pages of the site lead there."""
    if name.startswith("reference/made/"):
        return
    source[0] = make_reference.with_links(source[0], f"docs/{name}.md", f"{name}.md")
    notebook = f"_static/notebooks/{name.rpartition('/')[2]}.ipynb"
    if name.startswith("tutorials/") and (FOLDER / notebook).is_file():
        source[0] += f"\n\n{{download}}`This page as a notebook <../{notebook}>`\n"


def without_fields(
    app: Sphinx, what: str, name: str, thing: Any, skip: bool, _: Any
) -> bool | None:
    """Fields of a NamedTuple are told by its docstring."""
    told = getattr(thing, "__doc__", None) or ""
    return True if told.startswith("Alias for field number") else None


def mathml(text: str, as_block: bool = False) -> str:
    """A formula as MathML; docutils knows one name of the dots, and no sizes of brackets."""
    text = re.sub(r"\\[Bb]ig[glr]*(?![a-z])", "", text.replace(r"\dots", r"\ldots"))
    return tex2mathml(text, as_block=as_block)


def show_inline(writer: Any, node: Any) -> None:
    """A formula in a sentence, as MathML, which browsers draw by themselves."""
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def show_block(writer: Any, node: Any) -> None:
    """A formula of its own line."""
    writer.body.append(mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Make what is made from the code, then build."""
    make_inventories.write()
    make_reference.write()
    draw_network.write()
    app.add_html_math_renderer("mathml", (show_inline, None), (show_block, None))
    app.add_lexer("output", TextLexer)
    app.add_transform(LinkedNames)
    app.connect("source-read", mend_links)
    app.connect("missing-reference", resolve_public, priority=400)
    app.connect("autodoc-skip-member", without_fields)
