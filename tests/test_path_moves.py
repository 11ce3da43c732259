"""Moves of paths with the rows integrated out: each leaves the posterior of the paths as it is.

All joint paths of tiny teams are listed with their probabilities, by Gamma functions in double
precision. Starts drawn from these must still be distributed so after a move, whether it is accepted
always, sometimes or never: whole paths are counted, not their marginals.
"""

import functools
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln, xlogy

import btil
from btil.inference import gibbs, path_moves, urns
from btil.messages.layout import lay_out
from btil.messages.smoother import with_drawn_actions
from btil.models.team import bind

FLOAT64 = np.dtype(np.float64)
NUM_STARTS = 6000


def unlike_team():
    """No table in common; bob's policy is given, with a zero; small concentrations; one label."""
    demos = btil.Demonstrations(
        {"light": [0, 1, 1, 0, 1]},
        np.array([[0, 1], [2, 0], [2, 1], [2, 0], [0, 0]]),
        np.array([[-1, -1], [-1, -1], [1, -1], [-1, -1], [-1, 0]]),
        agents=("ann", "bob"),
        episodes=[0, 0, 0, 0, 1],
        num_actions=(3, 2),
        num_latents=(2, 3),
    )
    model = btil.TeamModel(
        policy={
            "ann": btil.DirichletCPT([[0.5, 0.01, 0.2], [0.3, 0.02, 1.0]]),
            "bob": btil.KnownCPT([[0.8, 0.2], [0.3, 0.7], [1.0, 0.0]]),
        },
        transition={
            "ann": btil.DirichletCPT([[5.0, 0.1], [0.2, 4.0]]),
            "bob": btil.DirichletCPT(0.3, parents=("next_light",)),
        },
        initial=btil.DirichletCPT(0.6),
    )
    return model, demos


def sharing_team():
    """All tables in common, so that one path's uses count for the other's."""
    demos = btil.Demonstrations(
        {"ann_held": [0, 1, 1, 0], "bob_held": [0, 1, 1, 1]},
        np.array([[0, 1], [1, 1], [0, 1], [1, 0]]),
        np.array([[-1, -1], [-1, -1], [-1, 1], [-1, -1]]),
        agents=("ann", "bob"),
        num_actions=2,
        num_latents=3,
    )
    held = {"ann": ("ann_held",), "bob": ("bob_held",)}
    model = btil.TeamModel(
        policy=btil.Shared(btil.DirichletCPT(0.05, parents=held)),
        transition=btil.Shared(btil.DirichletCPT([[9, 0.1, 0.2], [0.1, 7, 0.1], [0.3, 0.1, 8]])),
        initial=btil.Shared(btil.DirichletCPT([0.4, 1.1, 0.2])),
    )
    return model, demos


# What is drawn of actions that nobody saw and that the own transition reads.
DRAWN_ACTION = 1


def team_with_gaps():
    """Bob leaves for a step; unseen actions, of which ann's transition reads one; weights."""
    demos = btil.Demonstrations(
        {"light": [0, 1, 1, 0, 1]},
        {"ann": [0, -1, 1, 1, 0], "bob": [1, 0, -1, -1, 0]},
        {"ann": [-1, -1, -1, 1, -1], "bob": [-1, -1, -1, -1, 0]},
        agents=("ann", "bob"),
        episodes=[0, 0, 0, 0, 1],
        num_actions=(2, 2),
        num_latents=(2, 3),
        present={"ann": [1, 1, 1, 1, 1], "bob": [1, 1, 0, 1, 1]},
        latent_weights={"bob": [[1, 2, 0], [1, 1, 1], [1, 1, 1], [3, 1, 0.5], [1, 1, 1]]},
        missing="allow",
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.05, parents=("light",)),
        transition={
            "ann": btil.DirichletCPT([[5.0, 0.1], [0.2, 4.0]], parents=("own_action",)),
            "bob": btil.DirichletCPT(0.3),
        },
        initial=btil.DirichletCPT(0.6),
    )
    return model, demos


def said_of(bound):
    """What columns might say, beside the weights: per agent (steps, latents)."""
    generator = np.random.default_rng(8)
    found = []
    for agent, latents in zip(bound.demos.agents, bound.demos.num_latents, strict=True):
        logs = generator.normal(0, 1.0, (bound.demos.num_steps, latents))
        logs[1] -= [0.0] * (latents - 1) + [40.0]  # less than proposals look at
        logs[~bound.demos.present[:, bound.demos.agents.index(agent)]] = 0.0
        weights = bound.demos.latent_weights.get(agent, np.ones(logs.shape))
        with np.errstate(divide="ignore"):
            found.append(logs + np.log(weights))
    return found


def listed_paths(bound):
    """Every joint path that the labels allow, (paths, steps, agents)."""
    demos = bound.demos
    choices = [
        [max(label, 0)] if label >= 0 or not there else range(demos.num_latents[agent])
        for labels, present in zip(demos.latents, demos.present, strict=True)
        for agent, (label, there) in enumerate(zip(labels, present, strict=True))
    ]
    paths = np.array(list(itertools.product(*choices)))
    return paths.reshape(-1, demos.num_steps, len(demos.agents))


def all_paths(bound):
    """Every joint path that the labels allow, and its probability."""
    paths = listed_paths(bound)
    logs = np.array([log_joint(bound, path) for path in paths])
    weights = np.exp(logs - logs.max())
    return paths, weights / weights.sum()


def log_joint(bound, path):
    """log p(actions, path), rows integrated out, times what steps of a team with gaps say."""
    demos = bound.demos
    uses = {name: np.zeros(table.shape) for name, table in bound.tables.items()}
    total = 0.0
    for agent, name in enumerate(demos.agents):
        rows = bound.rows[name]
        policy, transition, initial = (
            uses[bound.table(role, name).name] for role in ("policy", "transition", "initial")
        )
        stays = demos.stays[agent].tolist()
        moves = rows.transition.copy()
        if rows.unseen is not None:
            moves[rows.unseen.step] = rows.unseen.transition[:, DRAWN_ACTION]
            before = path[rows.unseen.step - 1, agent]
            np.add.at(policy, (rows.unseen.policy, before, DRAWN_ACTION), 1)
        for t in np.flatnonzero(demos.present[:, agent]):
            latent = path[t, agent]
            if demos.actions[t, agent] >= 0:
                policy[rows.policy[t], latent, demos.actions[t, agent]] += 1
            if t in stays:
                initial[rows.initial[stays.index(t)], latent] += 1
            else:
                transition[moves[t], path[t - 1, agent], latent] += 1
            if demos.latent_weights:
                total += said_of(bound)[agent][t, latent]
    for name, table in bound.tables.items():
        if table.learned:
            u = table.cpt.concentration(table.contexts)
            total += (gammaln(u + uses[name]) - gammaln(u)).sum()
            total += (gammaln(u.sum(-1)) - gammaln((u + uses[name]).sum(-1))).sum()
        else:
            total += xlogy(uses[name], table.prior_mean()).sum()
    return total


def with_action(index, policy, transition, num_initial):
    """The steps with `DRAWN_ACTION` wherever the own transition reads an unseen one."""
    certain = jnp.where(jnp.arange(policy.shape[-1]) == DRAWN_ACTION, 0.0, -1e9)
    latent = jnp.zeros(index.label.shape, jnp.int32)
    return with_drawn_actions(
        jax.random.key(0),
        latent,
        index,
        jnp.broadcast_to(certain, policy.shape),
        0 * transition,
        num_initial,
    )


class Ground:
    """A team's steps as the moves see them."""

    def __init__(self, case):
        self.bound = bind(*case())
        self.layout = lay_out(self.bound)
        self.problem, self.program = gibbs.prepare(self.bound, self.layout, FLOAT64, True)
        self.weights = self.problem.prior | {
            name: jnp.exp(rows) for name, rows in self.problem.log_fixed.items()
        }
        self.lanes = jnp.asarray(self.layout.lanes)
        self.steps = [with_action(index, *self.weights_of(k)) for k, index in
                      enumerate(self.problem.steps)]  # fmt: skip
        if not self.bound.demos.latent_weights:
            return
        shapes = {name: table.shape for name, table in self.weights.items()}
        places = urns.with_actions(
            self.problem.places,
            shapes,
            set(self.bound.learned),
            self.program.sites,
            self.problem.steps,
            self.steps,
        )
        there = self.layout.lanes[..., None] >= 0
        said = [
            jnp.asarray(np.where(there, logs[self.layout.lanes], 0.0))
            for logs in said_of(self.bound)
        ]
        self.problem = self.problem._replace(places=urns.with_evidence(places, said))

    def weights_of(self, agent):
        policy, transition, initial = (self.weights[name] for name in self.program.sites[agent])
        return policy, transition, len(initial)

    def laid(self, path):
        """A path (steps, agents) in the lanes of the moves."""
        return urns.padded_paths(
            [jnp.where(self.lanes >= 0, path[self.lanes, k], 0) for k in range(path.shape[1])]
        )

    def landmarks(self, number=4):
        """Some paths that the labels allow, between which chains jump."""
        paths = self.paths[0]
        some = np.random.default_rng(2).choice(len(paths), number, replace=False)
        laid = jnp.stack([self.laid(jnp.asarray(path)) for path in paths[some]])
        kinds = np.broadcast_to(np.arange(3, dtype=np.int32), (laid.shape[2], 3))
        return path_moves.Landmarks(laid, jnp.asarray(kinds))

    def counted(self, laid):
        paths = jnp.split(laid[urns.BEFORE : urns.BEFORE + len(self.lanes), :-1], 2, axis=1)
        counts = gibbs._counts(paths, self.steps, self.weights, self.problem, self.program)
        return urns.fill_urns(self.weights, counts, self.problem.places)

    @classmethod
    @functools.cache
    def of(cls, case):
        """The same for all tests that change nothing of it."""
        return cls(case)

    @functools.cached_property
    def paths(self):
        """All paths and their probabilities."""
        return all_paths(self.bound)

    def taken(self, laid):
        """Back to (steps, agents)."""
        own = np.asarray(laid)[urns.BEFORE : urns.BEFORE + len(self.lanes), :-1]
        path = np.zeros((self.bound.demos.num_steps, 2), int)
        for k, part in enumerate(np.split(own, 2, axis=1)):
            path[self.layout.lanes[self.layout.lanes >= 0], k] = part[self.layout.lanes >= 0]
        return path


def windows(ground, key, latents, counted):
    problem, blocks = ground.problem, ground.program.blocks
    return path_moves._move_windows(key, latents, counted, problem.places, blocks)


def runs(ground, key, latents, counted):
    problem, blocks = ground.problem, ground.program.blocks
    return path_moves._move_runs(key, latents, counted, problem.places, blocks)


def swaps(ground, key, latents, counted):
    return path_moves._swap(key, latents, counted, ground.problem.places, ground.problem.stretches)


def jumps(ground, key, latents, counted):
    problem, landmarks = ground.problem, ground.landmarks()
    return path_moves._jump(key, latents, counted, problem.places, problem.stretches, landmarks)


def everything(ground, key, latents, counted):
    problem, blocks = ground.problem, ground.program.blocks
    return path_moves.move_paths(
        key, latents, counted, problem.places, problem.stretches, blocks, ground.landmarks()
    )


def moved(ground, move, seed):
    """Starts from the right distribution, each moved once: path numbers before and after."""
    paths, chances = ground.paths
    before = np.random.default_rng(seed).choice(len(paths), NUM_STARTS, p=chances)

    @jax.jit
    @partial(jax.vmap)
    def kernel(key, path):
        laid = ground.laid(path)
        latents, counted, *_ = move(ground, key, laid, ground.counted(laid))
        anew = ground.counted(latents)
        apart = jnp.abs(anew.counts - counted.counts).max()
        return latents, jnp.maximum(apart, jnp.abs(anew.count_rows - counted.count_rows).max())

    keys = jax.random.split(jax.random.key(seed), NUM_STARTS)
    laid, apart = kernel(keys, jnp.asarray(paths[before], jnp.int32))
    assert float(apart.max()) == 0, "counts are not those of the paths"
    number = {path.tobytes(): k for k, path in enumerate(paths)}
    after = np.array([number[ground.taken(one).tobytes()] for one in laid])
    return before, after, chances


@functools.cache
def moved_alike(case, move):
    """The same once, for all tests that look at it."""
    return moved(Ground.of(case), move, seed=3)


def misfit(after, chances):
    """p-value of the counts of whole paths; rare ones together."""
    expected, found = NUM_STARTS * chances, np.bincount(after, minlength=len(chances))
    often = expected >= 5
    groups = [np.append(v[often], v[~often].sum()) for v in (found, expected)]
    if groups[1][-1] < 5:  # so rare that their number is no chi-square
        groups = [v[:-1] for v in groups]
        groups[1] = groups[1] * groups[0].sum() / groups[1].sum()
    return stats.chisquare(*groups).pvalue


@pytest.fixture(autouse=True)
def few_moves(monkeypatch):
    """No more than there is to do in tiny teams; windows of two steps have both neighbours."""
    for name, value in {"WINDOW": 2, "LONGEST_RUN": 4, "RUNS": 3, "SWAPS": 2, "JUMPS": 4}.items():
        monkeypatch.setattr(path_moves, name, value)


@pytest.mark.parametrize("case", [unlike_team, sharing_team, team_with_gaps])
@pytest.mark.parametrize("move", [windows, runs, swaps, jumps, everything])
def test_paths_stay_distributed_as_they_are(case, move, x64):
    before, after, chances = moved_alike(case, move)
    assert (before != after).mean() > 0.05  # something moves
    assert misfit(after, chances) > 1e-4
    # Moves are reversible or made of such: pairs of paths as often one way as the other.
    assert misfit(before, chances) > 1e-4


@pytest.mark.parametrize("case", [unlike_team, sharing_team, team_with_gaps])
def test_whole_episodes_in_one_window(case, x64, monkeypatch):
    monkeypatch.setattr(path_moves, "WINDOW", 6)
    before, after, chances = moved(Ground(case), windows, seed=5)
    assert (before != after).mean() > 0.2
    assert misfit(after, chances) > 1e-4


def test_what_proposals_do_not_look_at_decides_whether_they_are_taken(x64, monkeypatch):
    monkeypatch.setattr(path_moves, "_LEAST_EVIDENCE", -0.3)
    before, after, chances = moved(Ground(team_with_gaps), windows, seed=4)
    assert (before != after).mean() > 0.05
    assert misfit(after, chances) > 1e-4


def test_latents_that_nothing_distinguishes_are_not_exchanged(x64):
    """A chain that changed names on its way would have averages that mean nothing."""
    ground = Ground(sharing_team)
    paths = ground.paths[0]
    path = paths[(paths == 2).sum((1, 2)).argmax()]
    # Two landmarks that differ in latents 1 and 2 alone.
    laid = ground.laid(jnp.asarray(path, jnp.int32))
    both = jnp.stack([laid, jnp.where(laid == 2, 1, laid)])
    problem, counted = ground.problem, ground.counted(laid)

    @jax.jit
    def jumps_made(key, kinds):
        landmarks = path_moves.Landmarks(both, jnp.broadcast_to(kinds[None], (laid.shape[1], 3)))
        places = (problem.places, problem.stretches)
        return path_moves._jump(key, laid, counted, *places, landmarks)[2]

    keys = jax.random.split(jax.random.key(0), 50)
    made = [
        sum(float(jumps_made(key, jnp.array(kinds, jnp.int32))) for key in keys)
        for kinds in ([0, 1, 2], [0, 1, 1])
    ]
    assert made[0] > 0
    assert made[1] == 0


def some_paths(bound, number):
    paths = listed_paths(bound)
    return paths[np.random.default_rng(4).choice(len(paths), number, replace=False)]


def put_into_urns(ground, laid):
    """Empty urns, what a path uses of them, and the urns that count it."""
    places = ground.problem.places
    nothing = {name: 0 * values for name, values in ground.weights.items()}
    empty = urns.fill_urns(ground.weights, nothing, places)
    before = jnp.concatenate([laid[:1], laid[:-1]])
    uses = [urns.action_uses(places, laid), urns.move_uses(places, before, laid)]
    return empty, uses, urns.with_uses(empty, uses, 1.0)


@pytest.mark.parametrize("case", [unlike_team, sharing_team, team_with_gaps])
def test_what_steps_use_has_the_probability_of_the_path(case, x64):
    """All uses put into empty urns: by Gamma functions the log joint density."""
    ground = Ground.of(case)
    places, paths = ground.problem.places, some_paths(ground.bound, 12)

    @jax.jit
    @jax.vmap
    def log_density(path):
        laid = ground.laid(path)
        empty, uses, filled = put_into_urns(ground, laid)
        found = urns.log_probability_change(empty, filled)
        for one in uses:
            found += jnp.where(one.adds > 0, 0.0, jnp.log(empty.prior[one.cell])).sum()
        if places.evidence is not None:
            found += jnp.take_along_axis(places.evidence, laid[..., None], -1).sum()
        return found

    with np.errstate(divide="ignore"):
        expected = [log_joint(ground.bound, path) for path in paths]
    found = log_density(jnp.asarray(paths, jnp.int32))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("case", [unlike_team, team_with_gaps])
def test_an_exchange_is_made_as_often_as_it_makes_paths_more_probable(case, x64):
    """Where the log of the uniform number is below that of the ratio, and nowhere else."""
    ground = Ground.of(case)
    places, demos = ground.problem.places, ground.bound.demos
    paths = some_paths(ground.bound, 60)
    with np.errstate(divide="ignore"):
        logs = np.array([log_joint(ground.bound, path) for path in paths])
        paths, logs = paths[np.isfinite(logs)][:12], logs[np.isfinite(logs)][:12]
        free = (demos.latents < 0) & demos.present
        where = free & (np.random.default_rng(7).random(paths.shape) < 0.5)
        exchanged = np.where(where & (paths < 2), 1 - paths, paths)
        ratio = np.array([log_joint(ground.bound, path) for path in exchanged]) - logs
    possible = np.isfinite(ratio)
    assert possible.sum() > 4
    level = np.where(possible, ratio, -500.0)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, 0))
    def exchange(path, where, level):
        laid = ground.laid(path)
        member = ground.laid(where.astype(jnp.int32)) > 0
        filled = put_into_urns(ground, laid)[2]
        latents, counted, changed = path_moves._exchange(
            laid, filled, places, member, jnp.int32(0), jnp.int32(1), level
        )
        anew = put_into_urns(ground, latents)[2]
        return latents, changed, jnp.abs(anew.counts - counted.counts).max()

    for beside, made in ((-1e-6, True), (1e-6, False)):
        given = (jnp.asarray(paths, jnp.int32), jnp.asarray(where), jnp.asarray(level + beside))
        latents, changed, apart = exchange(*given)
        found = np.array([ground.taken(one) for one in latents])
        expected = np.where((made & possible)[:, None, None], exchanged, paths)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(changed, (expected != paths).any((1, 2)))
        assert float(apart.max()) == 0


def test_more_steps_than_there_is_room_for_are_not_changed(x64, monkeypatch):
    """A step that changes, and the one after it, whose move comes from elsewhere."""
    ground = Ground.of(unlike_team)
    path = some_paths(ground.bound, 1)[0]
    other = path.copy()
    other[2, 1] = (path[2, 1] + 1) % 3
    laid = [ground.laid(jnp.asarray(one, jnp.int32)) for one in (path, other)]
    for room, enough in ((2, True), (1, False)):
        monkeypatch.setattr(path_moves, "MOST_CHANGED", room)
        possible = jax.jit(
            lambda *paths: path_moves._changed_uses(*paths, ground.problem.places)[3]
        )
        assert bool(possible(*laid)) == enough


def one_lane(evidence=None):
    """Two steps of a window and the one after it: a policy, and three tables of moves."""
    lane = {
        "cell": [0, 1, 0],
        "cell_stride": [2, 2, 2],
        "row": [0, 0, 0],
        "move": [4, 8, 12],
        "move_stride": [2, 2, 2],
        "origin": [2, 4, 6],
        "origin_stride": [1, 1, 1],
    }
    columns = {name: jnp.array(values, jnp.int32)[:, None] for name, values in lane.items()}
    ones = jnp.ones((3, 1))
    return urns.Places(
        **columns,
        acts=ones,
        moves=ones,
        allowed=jnp.ones((3, 1, 2), bool),
        forced=jnp.zeros((3, 1), bool),
        evidence=evidence,
    )


@pytest.mark.parametrize("least", [-30.0, -0.4])
def test_proposals_follow_the_means_of_the_urns(least, x64, monkeypatch):
    """Of a window of two steps between latent 1 and latent 0, all four paths by hand."""
    monkeypatch.setattr(path_moves, "_LEAST_EVIDENCE", least)
    # The policy, and the tables of three moves.
    prior = np.array([[[0.3, 1.7], [2.0, 0.5]], [[1.5, 0.2], [0.6, 0.9]],
                      [[0.1, 0.8], [3.0, 0.4]], [[0.7, 0.2], [0.3, 2.5]]])  # fmt: skip
    counts = np.random.default_rng(0).integers(0, 4, prior.shape).astype(float)
    said = np.array([[1.5, 0.5], [-0.2, 0.3], [0.0, 0.0]])
    urn = urns.Urns(
        *map(jnp.asarray, (prior.ravel(), prior.sum(-1).ravel(), counts.ravel())),
        jnp.asarray(counts.sum(-1).ravel()),
    )
    acts, *moves = (prior + counts) / (prior + counts).sum(-1, keepdims=True)
    told = np.exp(np.maximum(said - said.max(1, keepdims=True), least))
    weights = np.array([
        [moves[0][1, i] * acts[i, 0] * told[0, i]
         * moves[1][i, j] * acts[j, 1] * told[1, j] * moves[2][j, 0] for j in range(2)]
        for i in range(2)
    ])  # fmt: skip
    expected = weights / weights.sum()
    steps = 60
    grid = (np.stack(np.meshgrid(np.arange(steps), np.arange(steps)), -1) + 0.5) / steps
    uniforms = jnp.asarray(grid.reshape(-1, 2, 1))
    places = one_lane(jnp.asarray(said)[:, None])
    around = jnp.array([1, 0, 0, 0], jnp.int32)[:, None]
    propose = jax.jit(jax.vmap(lambda one: path_moves._propose(urn, places, around, one)))
    found = np.asarray(propose(uniforms))[..., 0]
    np.testing.assert_array_equal(found[:, [0, 3]], [[1, 0]] * len(found))
    shares = np.histogram2d(found[:, 1], found[:, 2], bins=2)[0] / len(found)
    np.testing.assert_allclose(shares, expected, atol=2 / steps)


def test_a_wrong_move_is_found_out(monkeypatch, x64):
    """Proposals that are always accepted forget that uses of a window count for one another."""
    monkeypatch.setattr(
        path_moves, "log_polya", lambda urns, path: (0.0, jnp.zeros(path.cell.shape[:-1]))
    )
    _, after, chances = moved(Ground(sharing_team), windows, seed=3)
    assert misfit(after, chances) < 1e-6


def test_what_is_far_less_probable_is_not_taken(monkeypatch, x64):
    def falling(urns, path):
        return 0.0, jnp.broadcast_to(jnp.array([[0.0], [-500.0]]), path.cell.shape[:-1])

    monkeypatch.setattr(path_moves, "log_polya", falling)
    before, after, _ = moved(Ground(sharing_team), windows, seed=3)
    np.testing.assert_array_equal(after, before)


def test_stretches_begin_where_steps_are_forced_and_know_their_first_step():
    """Two agents with a lane each; what is the same of all stretches tells nothing."""
    forced = np.array([[1, 1], [0, 0], [1, 0], [0, 0]], bool)
    allowed = np.array([[[1, 1], [1, 1]], [[1, 0], [1, 1]], [[1, 1], [1, 1]], [[1, 1], [0, 1]]]) > 0
    about = np.zeros((4, 2, 4), int)
    about[..., 1] = [0, 1]
    about[..., 2] = 7
    about[0, :, 3], about[2, 0, 3], about[3, :, 3] = [5, 6], 8, 9
    found = jax.tree.map(np.asarray, urns._find_stretches(forced, allowed, about, 1))
    np.testing.assert_array_equal(found.number, [[0, 2], [0, 2], [1, 2], [1, 2]])
    np.testing.assert_array_equal(found.moment, [[0, 0], [1, 1], [2, 2], [3, 3]])
    # The table, the agent, the lane, and the context that differs.
    np.testing.assert_array_equal(found.feature[:3], [[0, 0, 0, 5], [0, 0, 0, 8], [0, 1, 1, 6]])
    free = {tuple(step) for step in found.free.tolist()}
    assert free == {(0, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1)}
    assert {tuple(step) for step in found.long.tolist()} == free  # none is long


def test_long_stretches_are_those_that_runs_do_not_move():
    length = urns.LONGEST_RUN + 1
    forced = np.zeros((2 * length - 1, 1), bool)
    forced[[0, length]] = True
    allowed = np.ones((2 * length - 1, 1, 2), bool)
    about = np.zeros((2 * length - 1, 1, 3), int)
    long = np.asarray(urns._find_stretches(forced, allowed, about, 1).long)
    np.testing.assert_array_equal(np.unique(long[:, 0]), np.arange(length))
    nothing = urns._find_stretches(forced, np.arange(2) < np.ones((len(forced), 1, 1)), about, 1)
    np.testing.assert_array_equal(np.unique(nothing.free), [0])


def test_uses_are_drawn_from_an_urn_one_after_the_other(x64):
    prior = jnp.array([0.5, 1.5, 1.0])
    urn = urns.Urns(prior, jnp.array([3.0]), jnp.array([0.0, 1.0, 0.0]), jnp.array([1.0]))
    cells = jnp.array([0, 0, 1, 2, 1])
    uses = urns.Uses(cells, jnp.zeros(5, int), jnp.array([1.0, 1.0, 1.0, 0.0, 1.0]))
    # The fourth adds nothing: it is of a given table.
    fixed, gained = urns.log_polya(urn, uses)
    chances = [0.5 / 4, 1.5 / 5, 2.5 / 6, 1.0 / 4, 3.5 / 7]
    np.testing.assert_allclose(fixed + gained, np.log(chances).sum(), rtol=1e-13)


def test_impossible_paths_are_never_taken(x64):
    """A given policy with a zero: latents that cannot act so."""
    _, after, chances = moved_alike(unlike_team, everything)
    assert (chances == 0).any()
    assert (chances[after] > 0).all()


def test_starting_from_one_path_all_are_reached(x64):
    """Moves alone, without plain sweeps: the average over a long run is the posterior."""
    ground = Ground(sharing_team)
    paths, chances = ground.paths

    @jax.jit
    def run(key, path):
        def iteration(carry, key):
            latents, counted, _ = everything(ground, key, *carry)
            return (latents, counted), latents

        laid = ground.laid(path)
        return jax.lax.scan(iteration, (laid, ground.counted(laid)), jax.random.split(key, 4000))[1]

    laid = run(jax.random.key(0), jnp.asarray(paths[0], jnp.int32))
    found = np.mean([ground.taken(one) == 0 for one in np.asarray(laid)], axis=0)
    expected = np.einsum("p,pta->ta", chances, paths == 0)
    np.testing.assert_allclose(found, expected, atol=0.04)
