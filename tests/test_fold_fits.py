"""Fits of folds of labels: sweeps by enumeration, one program for all models, what is taken."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma

from btil import (
    Demonstrations,
    DirichletCPT,
    Shared,
    StickyDirichletCPT,
    TeamModel,
    UniformCPT,
)
from btil.messages.scaled import pair_marginals
from btil.models.team import bind
from btil.suggestion import fold_fits, preferring
from btil.suggestion.fold_fits import FoldFits, worth_fitting
from btil.suggestion.preferring import Option, preferred
from btil.suggestion.scores import Prior
from btil.suggestion.search import Scored

LENGTHS = [4, 3, 4]
LABELLED = [0, 2]


def recording(missing: bool = False) -> Demonstrations:
    """Three episodes of two members, two of them labelled but for a step."""
    generator = np.random.default_rng(1)
    steps = sum(LENGTHS)
    latents = generator.integers(2, size=(steps, 2))
    latents[4:7] = -1
    latents[1, 0] = -1
    actions = generator.integers(3, size=(steps, 2))
    if missing:
        actions[[2, 5], 0] = -1
    return Demonstrations(
        {"x": generator.integers(2, size=steps)},
        actions,
        latents,
        np.repeat(range(3), LENGTHS),
        num_actions=3,
        num_latents=2,
        latent_weights={"agent_1": generator.random((steps, 2)) + 0.1},
        missing="allow" if missing else "refuse",
    )


def enumerated(
    demos: Demonstrations, agent: int, tables: list[np.ndarray], known: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Expected uses of the tables and the marginals, path by path and unseen action by action."""
    policy, transition, initial = tables
    uses = [np.zeros_like(table) for table in tables]
    marginals = np.zeros((demos.num_steps, 2))
    x, actions = demos.state_variables["x"], demos.actions[:, agent]
    weights = demos.latent_weights.get(demos.agents[agent], np.ones((demos.num_steps, 2)))
    for begin, length in zip(demos.episode_starts, demos.episode_lengths, strict=True):
        rows = np.arange(begin, begin + length)
        open_actions = [range(3) if actions[t] < 0 else [actions[t]] for t in rows]
        total = 0.0
        found = [np.zeros_like(table) for table in tables]
        of_steps = np.zeros((length, 2))
        for path in itertools.product(range(2), repeat=int(length)):
            if any(known[t] not in (-1, k) for t, k in zip(rows, path, strict=True)):
                continue
            for acted in itertools.product(*open_actions):
                p, used = 1.0, [np.zeros_like(table) for table in tables]
                for k, t in enumerate(rows):
                    here = (x[t], path[k], acted[k])
                    p *= policy[here] * weights[t, path[k]]
                    used[0][here] += 1
                    if k:
                        move = (acted[k - 1], path[k - 1], path[k])
                        p *= transition[move]
                        used[1][move] += 1
                    else:
                        p *= initial[0, path[0]]
                        used[2][0, path[0]] += 1
                total += p
                for one, more in zip(found, used, strict=True):
                    one += p * more
                of_steps[np.arange(length), path] += p
        for one, more in zip(uses, found, strict=True):
            one += more / total
        marginals[rows] = of_steps / total
    return uses, marginals


@pytest.mark.parametrize("missing", [False, True])
def test_a_sweep_by_enumeration(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of labels, a sweep, and marginals under the rows then expected, of every fold."""
    monkeypatch.setattr(fold_fits, "_MOST_SWEEPS", 1)
    demos = recording(missing)
    parents = {agent: (f"action_{agent}",) for agent in demos.agents}
    model = TeamModel(
        Shared(DirichletCPT([0.5, 1.0, 0.2], ("x",))),
        Shared(StickyDirichletCPT(0.4, 2.0, parents)),
        Shared(DirichletCPT(0.7)),
    )
    fits = FoldFits(demos)
    assert sorted(np.concatenate(fits.folds)) == LABELLED
    found = fits.marginals(bind(model, demos))
    prior = [
        np.broadcast_to([0.5, 1.0, 0.2], (2, 2, 3)),
        np.broadcast_to(0.4 + 2.0 * np.eye(2), (3, 2, 2)),
        np.full((1, 2), 0.7),
    ]
    errors = []
    for fold, held in enumerate(fits.folds):
        known = demos.without_labels(held).latents
        w = [u.copy() for u in prior]
        for agent in range(2):
            x, actions, label = demos.state_variables["x"], demos.actions[:, agent], known[:, agent]
            for t in np.flatnonzero(label >= 0):
                if actions[t] >= 0:
                    w[0][x[t], label[t], actions[t]] += 1
                if t in demos.episode_starts:
                    w[2][0, label[t]] += 1
                elif label[t - 1] >= 0 and actions[t - 1] >= 0:
                    w[1][actions[t - 1], label[t - 1], label[t]] += 1
        logs = [np.exp(digamma(u) - digamma(u.sum(-1, keepdims=True))) for u in w]
        uses = [enumerated(demos, agent, logs, known[:, agent])[0] for agent in range(2)]
        w = [u + a + b for u, a, b in zip(prior, *uses, strict=True)]
        means = [u / u.sum(-1, keepdims=True) for u in w]
        for agent in range(2):
            marginals = enumerated(demos, agent, means, known[:, agent])[1]
            np.testing.assert_allclose(found[agent][fold], marginals, atol=1e-12)
            rows = np.isin(demos.episodes, held) & (demos.latents[:, agent] >= 0)
            errors.append((marginals.argmax(1) != demos.latents[:, agent])[rows].mean())
    assert sorted(fits.errors(bind(model, demos))) == pytest.approx(sorted(errors))


def test_sweeps_go_on_until_every_member_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first's tables are given, so its marginals stay; two sweeps leave the other .2 away."""
    demos = recording()
    model = TeamModel(
        {"agent_0": UniformCPT(), "agent_1": DirichletCPT([0.5, 1.0, 0.2], ("x",))},
        {"agent_0": UniformCPT(), "agent_1": StickyDirichletCPT(0.4, 2.0)},
        {"agent_0": UniformCPT(), "agent_1": DirichletCPT(0.7)},
    )
    fits, bound = FoldFits(demos), bind(model, demos)
    found = fits.marginals(bound)
    monkeypatch.setattr(fold_fits, "_TOLERANCE", 0.0)
    monkeypatch.setattr(fold_fits, "_MOST_SWEEPS", 200)
    for one, settled in zip(found, fits.marginals(bound), strict=True):
        np.testing.assert_allclose(one, settled, atol=0.05)


def test_errors_are_of_labelled_steps_of_members_who_have_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each episode by the fit of its fold; of who has no label in it there is no error."""
    demos = recording()
    latents = np.array(demos.latents)
    latents[7:, 1] = -1
    demos = demos.replace(latents=latents)
    fits = FoldFits(demos)
    assert sorted(map(list, fits.folds)) == [[0], [2]]
    # Fold by fold: everybody has latent 0, or everybody 1.
    said = np.eye(2)[[0, 1]][:, None].repeat(demos.num_steps, axis=1)
    monkeypatch.setattr(FoldFits, "marginals", lambda *_: [said, said])
    found = fits.errors(bind(TeamModel(), demos))
    expected = []
    for agent in range(2):
        for fold, episodes in enumerate(fits.folds):
            rows = np.isin(demos.episodes, episodes) & (latents[:, agent] >= 0)
            if rows.any():
                expected.append((latents[rows, agent] != fold).mean())
    assert len(expected) == 3
    np.testing.assert_allclose(found, expected)


def test_one_program_for_all_models() -> None:
    demos = recording()
    fits = FoldFits(demos)
    fits.errors(bind(TeamModel(DirichletCPT(1.0), DirichletCPT(1.0)), demos))
    before = pair_marginals._cache_size()  # type: ignore[attr-defined]
    for parents in [("x",), ("x", "action_agent_0"), ("next_x", "x", "actions")]:
        shared = Shared(StickyDirichletCPT(0.2, 1.0, parents))
        fits.errors(bind(TeamModel(DirichletCPT(1.0, ("x",)), shared), demos))
    assert pair_marginals._cache_size() == before  # type: ignore[attr-defined]


def test_of_many_unlabelled_episodes_some_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    demos = recording()
    assert FoldFits(demos).demos.num_episodes == 3
    # Two folds of two members with two latents each: sixteen cells a step, eleven steps.
    monkeypatch.setattr(fold_fits, "_MOST_CELLS", 16 * 11 - 1)
    fits = FoldFits(demos)
    assert fits.demos.num_episodes == 2
    assert (fits.demos.latents >= 0).any(0).all()
    assert worth_fitting(demos)
    monkeypatch.setattr(fold_fits, "_MOST_CELLS", 16 * 4 - 1)
    assert not worth_fitting(demos)


# ---------------------------------------------------------------------- what is taken


def option(parents: str, errors: Any, score: float = 0.0) -> Option:
    one = Scored(tuple(parents), score, Prior("flat", 1.0), None, 0)
    return Option(one, np.array(errors, float))


def test_the_first_stays_unless_another_errs_clearly_less() -> None:
    first = option("a", [0.2, 0.3, 0.2, 0.3])
    assert preferred([first, option("b", [0.1, 0.2, 0.1, 0.2])], 4.0) == 1
    # Less on average, but not by a standard error of the difference.
    assert preferred([first, option("b", [0.0, 0.3, 0.0, 0.45])], 4.0) == 0
    # Less everywhere, but by so little that other labels could say otherwise.
    assert preferred([first, option("b", [0.18, 0.28, 0.18, 0.28])], 4.0) == 0
    assert preferred([first, option("b", [0.2, 0.3, 0.2, 0.3])], 4.0) == 0


def test_a_parent_that_is_not_needed_is_dropped() -> None:
    alike = [0.2, 0.3, 0.2, 0.3]
    first = option("ab", alike, -10.0)
    assert preferred([first, option("a", alike, -15.0), option("b", alike, -14.0)], 4.0) == 1
    # The scores speak for it, or the fits do; something else is no simpler.
    assert preferred([first, option("a", alike, -27.0)], 4.0) == 0
    assert preferred([first, option("a", [0.2, 0.3, 0.2, 0.31], -11.0)], 4.0) == 0
    assert preferred([first, option("c", alike, -11.0)], 4.0) == 0
    # Of many episodes scores are taken at their word.
    many = [option("ab", alike * 3, -10.0), option("a", alike * 3, -17.0)]
    assert preferred(many, 4.0) == 0


def test_sets_that_split_alike_are_fitted_once() -> None:
    alike = [option("ab", [0.0], -3.0).scored, option("abc", [0.0], -3.0).scored]
    other = option("d", [0.0], -3.0).scored._replace(contexts=2)
    assert preferring._distinct([alike[1], other, alike[0]]) == [alike[0], other]
