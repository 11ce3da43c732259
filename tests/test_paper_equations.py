"""The paper's equations, written down once more and compared with the code.

Section 4 (static latents), Section 5 (dynamic latents, Algorithm 1) and Appendix B (decoding) of
the BTIL paper. The references are spelt out as in the paper, in NumPy and with plain loops.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from enumeration import all_rows, episode_rows, find_factor
from scipy.special import digamma, gammaln
from teams import random_demos, rich_model

import btil
from btil.models.team import BoundModel


def tilde(concentration: np.ndarray) -> np.ndarray:
    """exp(E[ln A]) of Dirichlet rows."""
    return np.exp(digamma(concentration) - digamma(concentration.sum(-1, keepdims=True)))


def concentrations(posterior: btil.TeamPosterior) -> dict[str, np.ndarray]:
    return {name: rows.concentration for name, rows in posterior.result.rows.items()}


def tilde_tables(posterior: btil.TeamPosterior) -> dict[str, np.ndarray]:
    learned = {name: tilde(w) for name, w in concentrations(posterior).items()}
    return all_rows(posterior.bound, learned)


def row_of(bound: BoundModel, role: str, agent: str, step: int, tables: Any) -> np.ndarray:
    factor = find_factor(bound, role, agent, step)
    return tables[factor.site][factor.context]


def divergence(w: np.ndarray, u: np.ndarray) -> float:
    """KL(Dir(w) || Dir(u)), summed over rows."""
    log_mean = digamma(w) - digamma(w.sum(-1, keepdims=True))
    per_row = (
        gammaln(w.sum(-1))
        - gammaln(u.sum(-1))
        + (gammaln(u) - gammaln(w) + (w - u) * log_mean).sum(-1)
    )
    return float(per_row.sum())


def joint_messages(bound: BoundModel, episode: int, tables: Any) -> tuple[Any, ...]:
    """F and B over the joint latents of all agents, O(h |X|^{2n}); T_s cancels.

    Returns:
        log Z, q(x^t) at [t] and q(x^t, x^{t+1}) at [t], with one axis per agent (two for pairs).
    """
    demos = bound.demos
    steps = list(episode_rows(demos, episode))
    sizes = demos.num_latents
    joint = list(itertools.product(*map(range, sizes)))

    def rows(role: str, row: int) -> list[np.ndarray]:
        return [row_of(bound, role, agent, row, tables) for agent in demos.agents]

    initials = rows("initial", steps[0])
    policies = [rows("policy", row) for row in steps]
    moves = [rows("transition", row) for row in steps[:-1]]

    def policy(t: int, x: tuple[int, ...]) -> float:
        value = 1.0
        for i, latent in enumerate(x):
            value *= demos.latents[steps[t], i] in (-1, latent)
            value *= policies[t][i][latent, demos.actions[steps[t], i]]
        return value

    def move(t: int, x: tuple[int, ...], y: tuple[int, ...]) -> float:
        return float(np.prod([table[k, j] for table, k, j in zip(moves[t], x, y, strict=True)]))

    def begin(x: tuple[int, ...]) -> float:
        return float(np.prod([b[j] for b, j in zip(initials, x, strict=True)]))

    forward = [np.zeros(sizes) for _ in steps]
    backward = [np.ones(sizes) for _ in steps]
    for j in joint:
        forward[0][j] = begin(j) * policy(0, j)
    for t in range(1, len(steps)):
        for j in joint:
            forward[t][j] = sum(forward[t - 1][k] * move(t - 1, k, j) for k in joint) * policy(t, j)
    for t in range(len(steps) - 2, -1, -1):
        for j in joint:
            backward[t][j] = sum(
                backward[t + 1][x] * move(t, j, x) * policy(t + 1, x) for x in joint
            )
    z = forward[-1].sum()
    single = [f * b / z for f, b in zip(forward, backward, strict=True)]
    pairs = []
    for t in range(len(steps) - 1):
        pair = np.zeros((*sizes, *sizes))
        for k, j in itertools.product(joint, joint):
            pair[k + j] = forward[t][k] * move(t, k, j) * policy(t + 1, j) * backward[t + 1][j] / z
        pairs.append(pair)
    return float(np.log(z)), single, pairs


def own(table: np.ndarray, agent: int, num_agents: int) -> np.ndarray:
    """Sum a joint table over the latents of the other agents."""
    keep = {agent} if table.ndim == num_agents else {agent, agent + num_agents}
    return table.sum(tuple(axis for axis in range(table.ndim) if axis not in keep))


TEAMS = {
    "two agents": random_demos(0),
    "three agents": random_demos(4, (3, 1, 2), (2, 3, 1), (2, 4, 3)),
    "sizes collide": random_demos(3, (4, 4), (2, 2), (2, 2)),
}


def short_fit(demos: btil.Demonstrations, **options: Any) -> btil.TeamPosterior:
    """A fit that stops early: its q(rows) is no fixed point, so the equations are not trivial."""
    return btil.fit(
        rich_model(),
        demos,
        dtype="float64",
        progress=False,
        **{"max_iterations": 3, "tolerance": 1e-300, **options},
    )


@pytest.mark.parametrize("team", ["three agents", "sizes collide"])
def test_joint_messages_are_products_of_the_agents_own(team: str) -> None:
    posterior = short_fit(TEAMS[team])
    demos, bound = posterior.demos, posterior.bound
    tables = {name: posterior._point(name, "mean") for name in bound.learned}
    tables = all_rows(bound, tables)
    smoothed = posterior.smooth(demos, use_labels=True)
    evidence = posterior.log_likelihood(demos)
    for episode in range(demos.num_episodes):
        log_z, single, _ = joint_messages(bound, episode, tables)
        assert evidence[episode] == pytest.approx(log_z, abs=1e-10)
        for t, row in enumerate(episode_rows(demos, episode)):
            product = np.ones(())
            for agent in demos.agents:
                product = np.multiply.outer(product, smoothed[agent][row])
            np.testing.assert_allclose(single[t], product, rtol=0, atol=1e-12)


@pytest.mark.parametrize("team", ["three agents", "sizes collide"])
def test_one_sweep_is_equations_seven_and_eight(team: str) -> None:
    """w = u + expected counts under q(x), q(x) by the joint messages on exp E[ln rows]."""
    before = short_fit(TEAMS[team])
    # Two sweeps from there: the first evaluates the start, the second what it led to.
    after = short_fit(TEAMS[team], max_iterations=2, start=concentrations(before))
    bound, demos = before.bound, before.demos
    num = demos.num_agents
    tables = tilde_tables(before)
    updated = {
        name: table.cpt.concentration(table.contexts) for name, table in bound.learned.items()
    }
    log_z = 0.0
    for episode in range(demos.num_episodes):
        steps = episode_rows(demos, episode)
        episode_log_z, single, pairs = joint_messages(bound, episode, tables)
        log_z += episode_log_z
        for i, agent in enumerate(demos.agents):
            factor = find_factor(bound, "initial", agent, steps[0])
            updated[factor.site][factor.context] += own(single[0], i, num)
            for t, row in enumerate(steps):
                factor = find_factor(bound, "policy", agent, row)
                updated[factor.site][factor.context][:, demos.actions[row, i]] += own(
                    single[t], i, num
                )
            for t, row in enumerate(steps[:-1]):
                factor = find_factor(bound, "transition", agent, row)
                updated[factor.site][factor.context] += own(pairs[t], i, num)
    for name, w in concentrations(after).items():
        np.testing.assert_allclose(w, updated[name], rtol=0, atol=1e-10)
    penalty = sum(
        divergence(w, bound.tables[name].cpt.concentration(bound.tables[name].contexts))
        for name, w in concentrations(before).items()
    )
    assert before.elbo == pytest.approx(log_z - penalty, abs=1e-9)


def test_supervised_closed_form() -> None:
    """Section 4, l = d: w = u + counts; the same for transitions and initials."""
    demos = random_demos(2, labelled=1.0)
    posterior = btil.fit(rich_model(), demos, dtype="float64", progress=False)
    bound = posterior.bound
    expected = {
        name: table.cpt.concentration(table.contexts) for name, table in bound.learned.items()
    }
    for episode in range(demos.num_episodes):
        steps = episode_rows(demos, episode)
        for i, agent in enumerate(demos.agents):
            x = demos.latents[:, i]
            factor = find_factor(bound, "initial", agent, steps[0])
            expected[factor.site][factor.context][x[steps[0]]] += 1
            for row in steps:
                factor = find_factor(bound, "policy", agent, row)
                expected[factor.site][factor.context][x[row], demos.actions[row, i]] += 1
            for row in steps[:-1]:
                factor = find_factor(bound, "transition", agent, row)
                expected[factor.site][factor.context][x[row], x[row + 1]] += 1
    for name, w in concentrations(posterior).items():
        np.testing.assert_allclose(w, expected[name], rtol=0, atol=1e-12)
    assert len(posterior.elbo_trace) <= 2
    assert posterior.converged


def static_team() -> tuple[btil.TeamModel, btil.Demonstrations]:
    """Some episodes labelled (at one step, which is all it takes), the others not at all."""
    demos = random_demos(8, (4, 3, 5, 1, 4, 3), (2, 3), (3, 2), (2,), labelled=0.0)
    labels = np.full((demos.num_steps, 2), -1)
    labels[0] = [0, 2]
    labels[5] = [1, 0]
    demos = btil.Demonstrations(
        states=demos.state_variables,
        actions=demos.actions,
        latents=labels,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states=demos.num_states,
        num_actions=demos.num_actions,
        num_latents=demos.num_latents,
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.2, parents=("state",)), transition=btil.StaticCPT()
    )
    return model, demos


def test_static_updates() -> None:
    """Section 4: q(x) proportional to exp sum ln policy~, w = u + expected counts."""
    model, demos = static_team()
    before, after = (
        btil.fit(model, demos, dtype="float64", progress=False, max_iterations=n, tolerance=1e-300)
        for n in (4, 5)
    )
    tables = tilde_tables(before)
    log_z = 0.0
    for i, agent in enumerate(demos.agents):
        latents = demos.num_latents[i]
        w = np.full_like(concentrations(after)[f"policy_{agent}"], 1.2)
        for episode in range(demos.num_episodes):
            steps = list(episode_rows(demos, episode))
            known = demos.latents[steps, i].max()
            scores = np.array(
                [
                    sum(
                        np.log(
                            row_of(before.bound, "policy", agent, r, tables)[x, demos.actions[r, i]]
                        )
                        for r in steps
                    )
                    for x in range(latents)
                ]
            )
            weights = np.exp(scores) * ((known < 0) | (np.arange(latents) == known))
            q = weights / weights.sum()
            log_z += np.log(weights.sum() / latents)
            for r in steps:
                context = find_factor(before.bound, "policy", agent, r).context
                w[context][:, demos.actions[r, i]] += q
        np.testing.assert_allclose(concentrations(after)[f"policy_{agent}"], w, rtol=0, atol=1e-10)
    penalty = sum(divergence(w, np.full_like(w, 1.2)) for w in concentrations(before).values())
    assert before.elbo == pytest.approx(log_z - penalty, abs=1e-9)


def test_static_latents_stay_in_every_belief() -> None:
    model, demos = static_team()
    posterior = btil.fit(model, demos, dtype="float64", progress=False)
    decoded = posterior.decode(demos, use_labels=True)
    smoothed = posterior.smooth(demos, use_labels=True)
    for episode in range(demos.num_episodes):
        steps = list(episode_rows(demos, episode))
        assert np.all(decoded[steps] == decoded[steps[0]])
        for beliefs in smoothed.values():
            np.testing.assert_allclose(beliefs[steps], beliefs[[steps[0]] * len(steps)], atol=1e-12)


def test_policy_is_the_arg_max_of_the_dirichlet() -> None:
    """Algorithm 1, line 11: the mode, (w - 1) / sum (w - 1)."""
    model, demos = static_team()
    posterior = btil.fit(model, demos, dtype="float64", progress=False)
    for agent in demos.agents:
        w = concentrations(posterior)[f"policy_{agent}"]
        expected = (w - 1) / (w - 1).sum(-1, keepdims=True)
        states = posterior.contexts(agent, "policy")["x"].to_numpy()
        np.testing.assert_allclose(posterior.policy(agent, states, estimate="map"), expected)


def test_decoding_is_appendix_b() -> None:
    """V_t(r) = policy * max_m [T(r | m) V_{t-1}(m)], then backtracking."""
    posterior = short_fit(TEAMS["two agents"].without_labels())
    demos, bound = posterior.demos, posterior.bound
    tables = all_rows(bound, {name: posterior._point(name, "mean") for name in bound.learned})
    decoded = posterior.decode(demos)
    for i, agent in enumerate(demos.agents):
        for episode in range(demos.num_episodes):
            steps = list(episode_rows(demos, episode))

            def acted(row: int, i: int = i, agent: str = agent) -> np.ndarray:
                return row_of(bound, "policy", agent, row, tables)[:, demos.actions[row, i]]

            value = acted(steps[0]) * row_of(bound, "initial", agent, steps[0], tables)
            came_from = []
            for row in steps[1:]:
                scores = row_of(bound, "transition", agent, row - 1, tables) * value[:, None]
                came_from.append(scores.argmax(0))
                value = acted(row) * scores.max(0)
            path = [int(value.argmax())]
            for pointers in reversed(came_from):
                path.append(int(pointers[path[-1]]))
            assert decoded[steps, i].tolist() == path[::-1]
