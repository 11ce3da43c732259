"""A small team, as a mean field and as chains, for all tests of figures."""

import matplotlib
import numpy as np
import pytest
from drawn import ACTS, MOODS, concentrations, make
from matplotlib import pyplot

from btil import Demonstrations, DirichletCPT, TeamModel
from btil.inference.result import DirichletRows, DrawnRows
from btil.models.team import bind


@pytest.fixture(scope="module")
def demos():
    rng = np.random.default_rng(0)
    labels = np.stack([np.repeat(rng.integers(0, k, 30), 3) for k in (3, 2)], axis=1)
    labels[80:, 0] = -1
    return Demonstrations(
        states={"room": rng.integers(0, 2, 90)},
        actions=rng.integers(0, 2, (90, 2)),
        latents=labels,
        episodes=np.repeat(["first", "second"], [50, 40]),
        agents=("ann", "bob"),
        num_latents=(3, 2),
        state_names={"room": ("hall", "yard")},
        action_names={"ann": ACTS, "bob": ("sing", "hum")},
        latent_names={"ann": MOODS},
    )


@pytest.fixture(scope="module")
def bound(demos):
    model = TeamModel(
        policy=DirichletCPT(1.0, parents=("room",)),
        transition=DirichletCPT(1.0),
        initial=DirichletCPT(1.0),
    )
    return bind(model, demos)


@pytest.fixture(scope="module")
def mfvi(bound):
    rows = {site: DirichletRows(values) for site, values in concentrations(bound).items()}
    trace = -100 / np.arange(1.0, 21) - 50
    return make(bound, rows, elbo=-55.25, elbo_trace=trace, restart_traces=(trace, trace[:7] - 9.0))


@pytest.fixture(scope="module")
def chains(bound):
    rng = np.random.default_rng(1)
    rows = {}
    for site, values in concentrations(bound).items():
        flat = values.reshape(-1, values.shape[-1])
        draws = np.stack([rng.dirichlet(row, (2, 60)) for row in flat], axis=2)
        rows[site] = DrawnRows(draws.reshape(2, 60, *values.shape))
    # One row on which the chains do not agree at all.
    rows["policy_ann"].draws[0, :, 1, 2] = rng.dirichlet([2, 40], 60)
    rows["policy_ann"].draws[1, :, 1, 2] = rng.dirichlet([40, 2], 60)
    diverging = np.zeros((2, 60), bool)
    diverging[0, 5] = True
    return make(bound, rows, "nuts", sample_stats={"diverging": diverging})


@pytest.fixture(scope="module")
def pair():
    """Two agents with the same latents, both of them labelled everywhere but at the end."""
    rng = np.random.default_rng(5)
    labels = np.stack(
        [np.repeat(rng.integers(0, 2, 8), 5), np.repeat(rng.integers(0, 2, 10), 4)], 1
    )
    hidden = labels.copy()
    hidden[36:] = -1
    demos = Demonstrations(
        states=np.zeros(40, int), actions=labels, latents=hidden, num_states=1, num_latents=2,
        episodes=np.repeat([0, 1], 20), agents=("ann", "bob"), latent_names=("rest", "lift"),
    )  # fmt: skip
    bound = bind(TeamModel(policy=DirichletCPT(1.0), transition=DirichletCPT(1.0)), demos)
    return make(bound, {s: DirichletRows(v) for s, v in concentrations(bound).items()})


@pytest.fixture(autouse=True)
def nothing_leaks():
    settings = dict(matplotlib.rcParams)
    yield
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings
