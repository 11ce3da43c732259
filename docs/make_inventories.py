"""Lists of names of other libraries, in the form that Sphinx links by.

The site is built without a network, so these lists are in the repository: `docs/inventories/*.inv`,
only the names that our pages and docstrings use, with the addresses where each library explains
them. To add a name, add it here; the next `make docs` writes the lists.
"""

import zlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "inventories"

ADDRESSES = {
    "jax": "https://docs.jax.dev/en/latest/",
    "numpyro": "https://num.pyro.ai/en/stable/",
    "arviz": "https://python.arviz.org/projects/",
    "numpy": "https://numpy.org/doc/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "xarray": "https://docs.xarray.dev/en/stable/",
    "matplotlib": "https://matplotlib.org/stable/",
    "python": "https://docs.python.org/3/",
}

_JAX = (
    "jax.Array",
    "jax.block_until_ready",
    "jax.devices",
    "jax.distributed.initialize",
    "jax.enable_x64",
    "jax.grad",
    "jax.jit",
    "jax.lax.scan",
    "jax.pure_callback",
    "jax.random.key",
    "jax.random.split",
    "jax.vmap",
)
_NUMPYRO = {
    **{
        f"numpyro.{name}": f"primitives.html#numpyro.primitives.{name}"
        for name in ("deterministic", "factor", "param", "plate", "sample")
    },
    "numpyro.infer.MCMC": "mcmc.html#numpyro.infer.mcmc.MCMC",
    "numpyro.infer.NUTS": "mcmc.html#numpyro.infer.hmc.NUTS",
    "numpyro.infer.Predictive": "utilities.html#numpyro.infer.util.Predictive",
    "numpyro.infer.SVI": "svi.html#numpyro.infer.svi.SVI",
    "numpyro.infer.TraceMeanField_ELBO": "svi.html#numpyro.infer.elbo.TraceMeanField_ELBO",
    "numpyro.infer.Trace_ELBO": "svi.html#numpyro.infer.elbo.Trace_ELBO",
    "numpyro.infer.autoguide.AutoGuide": "autoguide.html#numpyro.infer.autoguide.AutoGuide",
    "numpyro.infer.autoguide.AutoNormal": "autoguide.html#numpyro.infer.autoguide.AutoNormal",
    "numpyro.distributions.Distribution": (
        "distributions.html#numpyro.distributions.distribution.Distribution"
    ),
    **{
        f"numpyro.distributions.{name}": (
            f"distributions.html#numpyro.distributions.continuous.{name}"
        )
        for name in ("Beta", "Dirichlet", "LogNormal", "Normal")
    },
    "numpyro.optim.Adam": "optimizers.html#numpyro.optim.Adam",
}
_ARVIZ = {
    **{
        f"arviz.{name}": f"plots/en/latest/api/generated/arviz_plots.{name}.html"
        for name in (
            "plot_ecdf_pit",
            "plot_ess",
            "plot_forest",
            "plot_prior_posterior",
            "plot_rank",
            "plot_trace",
            "plot_trace_dist",
        )
    },
    **{
        f"arviz.{name}": f"stats/en/latest/api/generated/arviz_stats.{name}.html"
        for name in ("compare", "ess", "loo", "rhat", "summary")
    },
    **{
        f"arviz.{name}": f"base/en/latest/api/generated/arviz_base.{name}.html"
        for name in ("extract", "from_dict")
    },
}

# {library: {name: page and place}}
NAMES = {
    "jax": {name: f"_autosummary/{name}.html#{name}" for name in _JAX},
    "numpyro": _NUMPYRO,
    "arviz": _ARVIZ,
    "numpy": {
        f"numpy.{name}": f"reference/generated/numpy.{name}.html#numpy.{name}"
        for name in ("dtype", "ndarray", "load")
    },
    "pandas": {
        f"pandas.{name}": f"reference/api/pandas.{name}.html#pandas.{name}"
        for name in ("DataFrame", "Series", "read_csv")
    },
    "xarray": {
        f"xarray.{name}": f"generated/xarray.{name}.html#xarray.{name}"
        for name in ("DataArray", "DataTree", "Dataset")
    },
    "matplotlib": {
        "matplotlib.figure.Figure": "api/figure_api.html#matplotlib.figure.Figure",
        "matplotlib.axes.Axes": "api/_as_gen/matplotlib.axes.Axes.html#matplotlib.axes.Axes",
    },
    "python": {
        **{
            f"{name}": f"library/exceptions.html#{name}"
            for name in (
                "ArithmeticError",
                "AttributeError",
                "FileExistsError",
                "FloatingPointError",
                "KeyError",
                "MemoryError",
                "OSError",
                "RuntimeError",
                "TypeError",
                "ValueError",
                "UserWarning",
            )
        },
        "pathlib.Path": "library/pathlib.html#pathlib.Path",
    },
}


def kind_of(name: str) -> str:
    """What Sphinx takes a name for."""
    if name.endswith(("Error", "Warning")):
        return "py:exception"
    return "py:class" if name.rpartition(".")[2][:1].isupper() else "py:function"


def text_of(library: str) -> bytes:
    """An inventory in Sphinx's second format: four lines of text, then the names, compressed."""
    lines = [
        f"{name} {kind_of(name)} 1 {place} -\n" for name, place in sorted(NAMES[library].items())
    ]
    head = (
        "# Sphinx inventory version 2\n"
        f"# Project: {library}\n"
        "# Version: \n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    return head.encode() + zlib.compress("".join(lines).encode(), 9)


def write() -> None:
    """Write the lists that have changed."""
    FOLDER.mkdir(exist_ok=True)
    for library in ADDRESSES:
        path, text = FOLDER / f"{library}.inv", text_of(library)
        if not path.is_file() or path.read_bytes() != text:
            path.write_bytes(text)


if __name__ == "__main__":
    write()
