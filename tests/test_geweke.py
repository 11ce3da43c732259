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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions.transforms import biject_to
from scipy import stats

import btil
from btil.inference import gibbs, parameters, path_moves
from btil.inference.parameters import Families, Moving
from btil.messages.layout import Layout, lay_out, pad_rows
from btil.messages.smoother import filter_lanes, path_counts, smooth
from btil.models.cpt import ROLES
from btil.models.draws import DrawnTables, KnownRows, dirichlet_draws, prior_tables
from btil.models.parametric import (
    all_priors,
    constrain,
    given_concentration,
)
from btil.models.simulate import draw_values, simulate
from btil.models.team import BoundModel, bind, make_contexts

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
    for role, agent in itertools.product(ROLES, demos.agents):
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


def kernel_turn(kernel, key, demos, tables, collapsed):
    """Rows that the data read, by the kernel; those they do not read, anew from the prior."""
    bound = bind(MODEL, demos)
    layout = lay_out(bound)
    contexts = {site: table.contexts for site, table in bound.learned.items()}
    logs = {
        site: np.log(pad_rows(tables.rows(site, own), layout.num_rows[site], 0.5))
        for site, own in contexts.items()
    }
    problem, program = gibbs.prepare(bound, layout, FLOAT32, collapsed)
    if collapsed:
        # Any paths serve that do not depend on what is drawn.
        shape = (3, *problem.places.cell.shape)
        landmarks = np.random.default_rng(4).integers(2, size=shape, dtype=np.int16)
        kinds = jnp.broadcast_to(jnp.arange(2, dtype=jnp.int32), (shape[2], 2))
        landmarks = path_moves.Landmarks(jnp.asarray(landmarks), kinds)
        problem = problem._replace(landmarks=landmarks)
    following, _ = kernel(
        key,
        gibbs.State({site: jnp.asarray(values, FLOAT32) for site, values in logs.items()}),
        problem,
        program,
    )
    known = {}
    for site, own in contexts.items():
        rows = np.exp(np.asarray(following.log_tables[site], np.float64))
        known[site] = KnownRows(own.rows, rows[: len(own.rows)])
    return DrawnTables(bound.tables, {}, tables.generator, known)


def largest_z_score(kernel, seed=1, collapsed=False):
    """How many standard errors the chains' averages are off their starts, and what is allowed."""
    tables = prior_tables(MODEL, replicas(), np.random.default_rng(seed))
    demos = new_data(replicas(), tables)
    start = quantities(tables, demos)
    total = np.zeros_like(start)
    for key in jax.random.split(jax.random.key(seed), NUM_TURNS):
        tables = kernel_turn(kernel, key, demos, tables, collapsed)
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
    return jax.jit(lambda *arguments: step(*arguments), static_argnums=3)


def test_the_kernel_leaves_the_joint_distribution_as_it_is():
    largest, allowed = largest_z_score(compiled(gibbs.step))
    assert largest < allowed


def test_moves_with_the_rows_integrated_out_leave_it_as_it_is(monkeypatch):
    monkeypatch.setattr(path_moves, "WINDOW", 3)
    largest, allowed = largest_z_score(compiled(gibbs.step), collapsed=True)
    assert largest < allowed


def forgets_the_concentration(monkeypatch):
    def step(key, state, problem, *others):
        ones = {site: jnp.ones_like(values) for site, values in problem.prior.items()}
        return gibbs.step(key, state, problem._replace(prior=ones), *others)

    return step


def draws_latents_from_the_filter(monkeypatch):
    """Given the past alone, where it should be the whole episode."""

    def draw(key, factors):
        filtered = filter_lanes(factors)
        path = jax.random.categorical(key, filtered.log_filtered, axis=1)
        return filtered.log_normalizer, path

    monkeypatch.setattr(gibbs, "filter_and_sample", draw)
    return gibbs.step


def draws_latents_one_by_one(monkeypatch):
    """Each from its own smoothed probabilities, as if steps were independent."""

    def draw(key, factors):
        filtered = filter_lanes(factors)
        marginal = smooth(filtered, factors.start).marginal
        return filtered.log_normalizer, jax.random.categorical(key, jnp.log(marginal), axis=1)

    monkeypatch.setattr(gibbs, "filter_and_sample", draw)
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


# ---------------------------------------------------------------------- parametric families

NUM_CHAINS = 400
PLACES = np.array([0, 1, 1, 0, 1, 0, 0, 1])
SEEN_LABELS = [0, 3]


class Setting(NamedTuple):
    """Ann alone: what her chains have in common."""

    bound: BoundModel
    layout: Layout
    problem: gibbs.Problem
    program: gibbs.Program

    @property
    def families(self) -> Families:
        return self.program.families


def parametric_setting():
    """A policy that is a function of parameters, transitions that scatter around a base row.

    The strength of the latter is learned: parameters lie on the line, a simplex and a half-line.
    """
    model = btil.TeamModel(
        policy=btil.SoftmaxCPT(parents=("x",)),
        transition=btil.HierarchicalDirichletCPT(parents=("x",)),
    )
    actions = np.zeros((len(PLACES), 1), int)
    demos = btil.Demonstrations(
        {"x": PLACES}, actions, agents=("ann",), num_actions=3, num_latents=2
    )
    bound = bind(model, demos)
    layout = lay_out(bound)
    problem, program = gibbs.prepare(bound, layout, FLOAT32)
    return Setting(bound, layout, problem, program)


def prior_states(setting, seed, generator):
    """Parameters and rows of every chain from the prior."""
    priors = all_priors(setting.families)
    keys = jax.random.split(jax.random.key(seed), len(priors))
    drawn, unconstrained = {}, {}
    for key, (site, prior) in zip(keys, priors.items(), strict=True):
        drawn[site] = prior.sample(key, (NUM_CHAINS,))
        unconstrained[site] = biject_to(prior.support).inv(drawn[site])
    (moves,) = (family for family in setting.families if family.cpt.dirichlet_rows)
    concentration = jax.vmap(lambda own: given_concentration(moves, own, {}))(drawn)
    shape = (NUM_CHAINS, setting.layout.num_rows[moves.name], *moves.shape[1:])
    rows = dirichlet_draws(generator, np.broadcast_to(concentration, shape))
    # With steps so long that proposals are refused, too.
    moving = Moving(unconstrained, jnp.full(NUM_CHAINS, -1.0, FLOAT32))
    return gibbs.State({moves.name: jnp.asarray(np.log(rows), FLOAT32)}, moving)


def rows_of(setting, states):
    """Rows of the policy and of the transition, of every chain."""
    functional = jax.vmap(gibbs.functional_log_rows, in_axes=(0, None, None))
    logs = functional(states, setting.problem, setting.families) | states.log_tables
    return (np.exp(np.asarray(logs[f"{role}_ann"], np.float64)) for role in ROLES[:2])


def act(setting, states, generator):
    """New actions, and labels of some steps, (chains, steps) each."""
    policy, transition = rows_of(setting, states)
    read, every = setting.bound.rows["ann"], np.arange(NUM_CHAINS)
    latents = np.zeros((NUM_CHAINS, len(PLACES)), int)
    actions = np.zeros_like(latents)
    row = np.full((NUM_CHAINS, 2), 0.5)
    for t in range(len(PLACES)):
        if t > 0:
            row = transition[every, read.transition[t], latents[:, t - 1]]
        latents[:, t] = draw_values(row, generator)
        actions[:, t] = draw_values(policy[every, read.policy[t], latents[:, t]], generator)
    return actions, np.where(np.isin(np.arange(len(PLACES)), SEEN_LABELS), latents, -1)


def lane_indices(setting, actions, labels):
    """Where the steps of every chain look: what `lay_out` makes, for many chains at once."""
    (given,), lanes = setting.problem.steps, setting.layout.lanes
    cells = setting.bound.rows["ann"].policy * 3 + actions
    past_the_end = setting.layout.num_rows["policy_ann"] * 3
    every = jax.tree.map(lambda part: jnp.broadcast_to(part, (NUM_CHAINS, *part.shape)), given)
    return every._replace(
        policy=jnp.asarray(np.where(lanes >= 0, cells[:, lanes], past_the_end), jnp.int32),
        label=jnp.asarray(np.where(lanes >= 0, labels[:, lanes], -1), jnp.int32),
    )


def parametric_quantities(setting, states, actions, labels):
    """Functions of each chain's parameters, rows and data, (chains, functions)."""
    policy, transition = (
        rows[:, : PLACES.max() + 1].reshape(NUM_CHAINS, -1) for rows in rows_of(setting, states)
    )
    # JAX sorts the names, a start need not have.
    free = [states.moving.unconstrained[site] for site in sorted(states.moving.unconstrained)]
    free = np.concatenate([np.reshape(one, (NUM_CHAINS, -1)) for one in free], axis=1)
    values = np.concatenate([policy, transition, free.astype(np.float64)], axis=1)
    seen = np.concatenate([actions == 0, labels[:, SEEN_LABELS] == 0], axis=1) - 0.5
    products = (seen[:, :, None] * values[:, None]).reshape(NUM_CHAINS, -1)
    return np.concatenate([values, np.abs(free), seen, products], axis=1)


def largest_parametric_z_score(seed=1):
    """As `largest_z_score`."""
    setting, generator = parametric_setting(), np.random.default_rng(seed)

    @jax.jit
    @jax.vmap
    def kernel(key, state, index):
        problem = setting.problem._replace(steps=(index,))
        return gibbs.step(key, state, problem, setting.program, jnp.zeros(()))[0]

    states = prior_states(setting, seed, generator)
    data = act(setting, states, generator)
    start = parametric_quantities(setting, states, *data)
    total = np.zeros_like(start)
    for key in jax.random.split(jax.random.key(seed + 1), NUM_TURNS):
        keys = jax.random.split(key, NUM_CHAINS)
        states = kernel(keys, states, lane_indices(setting, *data))
        total += parametric_quantities(setting, states, *data)
        data = act(setting, states, generator)
    return judge(start, total / NUM_TURNS)


@pytest.mark.usefixtures("numpyro_as_it_is")
def test_the_kernel_moves_parameters_rightly():
    largest, allowed = largest_parametric_z_score()
    assert largest < allowed


@pytest.mark.usefixtures("numpyro_as_it_is")
def test_a_forgotten_jacobian_is_found_out(monkeypatch):
    def log_density(priors, unconstrained):
        values = constrain(priors, unconstrained)
        return sum(prior.log_prob(values[site]) for site, prior in priors.items())

    monkeypatch.setattr(parameters, "unconstrained_log_density", log_density)
    largest, allowed = largest_parametric_z_score()
    assert largest > allowed + 1
