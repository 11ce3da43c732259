"""Geweke's joint-distribution test of the Gibbs kernel, and that it finds wrong kernels out.

Parameters and data can be drawn together in two ways: parameters from the prior and data given
them, or by turns, parameters by the kernel given the data and data given the parameters. If the
kernel leaves the posterior as it is, both ways draw from one distribution.

Here many chains take turns side by side, each from a start of the first way. They are replicas of
a tiny team in one model: a state variable says which, and every table has it as a parent. Chains
are then independent of each other, so that errors of means over chains are plain standard errors.

Quantities are looked at after the kernel's turn and before that of the data: a kernel that does
not look at the data at all leaves the parameters' prior as it is, but not how they go together.

Reference: Geweke (2004), Getting it right: joint distribution tests of posterior simulators,
JASA 99.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import btil
from btil.inference import gibbs
from btil.inference.messages import lay_out, pad_rows, path_counts, smooth
from btil.models.draws import DrawnTables, KnownRows, prior_tables
from btil.models.simulate import simulate
from btil.models.team import bind, make_contexts

FLOAT32 = np.dtype(np.float32)
NUM_REPLICAS = 600
NUM_TURNS = 12
FALSE_ALARM = 1e-3
# Episodes of 5, 4 and 1 steps; x is the state.
STATES = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1, 1])
EPISODES = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 2])
LABELLED = np.zeros((10, 2), bool)
LABELLED[[0, 1, 3, 6, 9], [0, 0, 1, 0, 1]] = True


def replicas():
    """Ann has 2 latents and 3 actions, bob 3 and 2; nothing has happened yet."""
    replica = np.repeat(np.arange(NUM_REPLICAS), len(STATES))
    return btil.Demonstrations(
        {"replica": replica, "x": np.tile(STATES, NUM_REPLICAS)},
        np.zeros((len(replica), 2), int),
        episodes=replica * 3 + np.tile(EPISODES, NUM_REPLICAS),
        agents=("ann", "bob"),
        num_actions=(3, 2),
        num_latents=(2, 3),
    )


def team_model():
    """Latents move by what the other one did, and by where it led; no prior is symmetric."""
    policy = {
        "ann": btil.DirichletCPT([[6.0, 0.6, 0.4], [0.3, 1.0, 4.0]], parents=("replica", "x")),
        "bob": btil.DirichletCPT([[3.0, 0.3], [0.2, 1.5], [0.4, 0.3]], parents=("replica",)),
    }
    three = [[1.5, 0.3, 0.1], [0.1, 1.2, 0.4], [0.3, 0.1, 1.0]]
    transition = {
        "ann": btil.DirichletCPT([[0.3, 1.0], [0.2, 0.8]], parents=("replica", "action_bob")),
        "bob": btil.DirichletCPT(three, parents=("replica", "next_x")),
    }
    initial = {
        "ann": btil.DirichletCPT([0.2, 0.5], parents=("replica",)),
        "bob": btil.UniformCPT(),
    }
    return btil.TeamModel(policy, transition, initial)


MODEL = team_model()


def new_data(demos, tables):
    """What happens given the tables, and the labels that are seen of it."""
    full = simulate(MODEL, demos, tables, tables.generator)
    seen = np.tile(LABELLED, (NUM_REPLICAS, 1))
    return full.replace(latents=np.where(seen, full.latents, -1))


def quantities(tables, demos):
    """Functions of each replica's rows and data, (replicas, functions)."""
    parts = []
    for role, agent in itertools.product(("policy", "transition", "initial"), demos.agents):
        if MODEL.family(role, agent).learned:
            names = make_contexts(MODEL, role, agent, demos).names
            contexts = np.array(list(np.ndindex(NUM_REPLICAS, *(2 for _ in names[1:]))))
            contexts = make_contexts(MODEL, role, agent, demos, contexts)
            parts.append(tables.rows(f"{role}_{agent}", contexts).reshape(NUM_REPLICAS, -1))
    rows = np.concatenate(parts, axis=1)
    ann, bob = np.moveaxis(demos.actions.reshape(NUM_REPLICAS, -1, 2), 2, 0)
    acted = np.stack([(ann == 1).mean(1), (bob == 0).mean(1)], axis=1)
    known = demos.latents.reshape(NUM_REPLICAS, -1, 2)[:, LABELLED] == 0
    seen = np.concatenate([acted, known], axis=1)
    # Roots and differences: means of skew quantities are not yet normal.
    roots = np.sqrt(rows)
    products = ((seen - 0.5)[:, :, None] * roots[:, None]).reshape(NUM_REPLICAS, -1)
    both = acted.prod(1, keepdims=True)
    return np.concatenate([rows, roots, rows * (1 - rows), seen, both, products], axis=1)


def kernel_turn(kernel, key, demos, tables):
    """Rows that the data read, by the kernel; those they do not read, anew from the prior."""
    bound = bind(MODEL, demos)
    layout = lay_out(bound)
    contexts = {site: table.contexts for site, table in bound.learned.items()}
    logs = {
        site: np.log(pad_rows(tables.rows(site, own), layout.num_rows[site], 0.5))
        for site, own in contexts.items()
    }
    following, _ = kernel(
        key,
        gibbs.State({site: jnp.asarray(values, FLOAT32) for site, values in logs.items()}),
        gibbs._prepare(bound, layout, FLOAT32),
        tuple(layout.sites[agent] for agent in demos.agents),
        demos.num_episodes,
    )
    known = {}
    for site, own in contexts.items():
        rows = np.exp(np.asarray(following.log_tables[site], np.float64))
        known[site] = KnownRows(own.rows, rows[: len(own.rows)])
    return DrawnTables(bound.tables, {}, tables.generator, known)


def largest_z_score(kernel, seed=1):
    """How many standard errors the chains' averages are off their starts, and what is allowed."""
    tables = prior_tables(MODEL, replicas(), np.random.default_rng(seed))
    demos = new_data(replicas(), tables)
    start = quantities(tables, demos)
    total = np.zeros_like(start)
    for key in jax.random.split(jax.random.key(seed), NUM_TURNS):
        tables = kernel_turn(kernel, key, demos, tables)
        total += quantities(tables, demos)
        demos = new_data(demos, tables)
    return judge(start, total / NUM_TURNS)


def judge(start, average):
    """The largest absolute z-score, and the one that a right kernel stays below (Bonferroni)."""
    change = average - start
    z = change.mean(0) / (change.std(0, ddof=1) / np.sqrt(len(change)))
    return np.abs(z).max(), stats.norm.isf(FALSE_ALARM / (2 * len(z)))


def compiled(step):
    """A program of its own for each kernel: what it calls may have been replaced."""
    return jax.jit(lambda *arguments: step(*arguments), static_argnums=(3, 4))


def test_the_kernel_leaves_the_joint_distribution_as_it_is():
    largest, allowed = largest_z_score(compiled(gibbs.step))
    assert largest < allowed


def forgets_the_concentration(monkeypatch):
    def step(key, state, problem, *others):
        ones = {site: jnp.ones_like(values) for site, values in problem.prior.items()}
        return gibbs.step(key, state, problem._replace(prior=ones), *others)

    return step


def draws_latents_from_the_filter(monkeypatch):
    """Given the past alone, where it should be the whole episode."""

    def paths(key, filtered, start):
        return jax.random.categorical(key, filtered.log_filtered, axis=1)

    monkeypatch.setattr(gibbs, "sample_paths", paths)
    return gibbs.step


def draws_latents_one_by_one(monkeypatch):
    """Each from its own smoothed probabilities, as if steps were independent."""

    def paths(key, filtered, start):
        return jax.random.categorical(key, jnp.log(smooth(filtered, start).marginal), axis=1)

    monkeypatch.setattr(gibbs, "sample_paths", paths)
    return gibbs.step


def does_not_count_first_latents(monkeypatch):
    """Initial rows from their prior: only how they go with the data is then wrong."""

    def counts(*arguments):
        found = path_counts(*arguments)
        return found._replace(initial=jnp.zeros_like(found.initial))

    monkeypatch.setattr(gibbs, "path_counts", counts)
    return gibbs.step


@pytest.mark.parametrize(
    "wrong",
    [
        forgets_the_concentration,
        draws_latents_from_the_filter,
        draws_latents_one_by_one,
        does_not_count_first_latents,
    ],
)
def test_wrong_kernels_are_found_out(monkeypatch, wrong):
    largest, allowed = largest_z_score(compiled(wrong(monkeypatch)))
    assert largest > allowed + 1
