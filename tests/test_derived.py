"""Derived state variables of the grid-world tasks, and the model that reads them."""

import numpy as np
import pytest

import btil
from btil.analysis import hamming_distance
from btil.domains.gridworld.derived import task_states


@pytest.fixture(scope="module", params=["movers", "cleanup"])
def task(request):
    return getattr(btil.domains, request.param)("lesson")


@pytest.fixture(scope="module")
def demos(task):
    return task.simulate(60, seed=4, max_steps=60)


def test_derived_variables_say_in_words_what_the_items_are(task, demos):
    derived = task.add_derived_variables(demos)
    words = {
        name: np.array(derived.state_names[name])[values]
        for name, values in derived.state_variables.items()
    }
    assert len(np.unique(words["lying"])) > 2
    for row in range(0, demos.num_steps, 7):
        items = [words[f"item_{k}"][row] for k in range(task.grid.num_items)]
        lying = [str(k) for k, state in enumerate(items) if state == "origin"]
        assert words["lying"][row] == (" and ".join(lying) or "none")
        for agent in task.agents:
            hands = ("held", f"held by {agent}")
            held = [f"item {k}" for k, state in enumerate(items) if state in hands]
            assert words[f"{agent}_held"][row] == (held[0] if held else "nothing")
            cell = demos.state_variables[f"{agent}_cell"][row]
            here = [f"item {k}" for k in map(int, lying) if task.grid.items[k] == cell]
            assert words[f"{agent}_here"][row] == (here[0] if here else "nothing")
            theirs = [str(k) for k, state in enumerate(items) if state.startswith("held")]
            phase = "carrying" if held else "fetching" if lying else "waiting"
            assert words[f"{agent}_phase"][row] == phase
            choice = " and ".join(lying) or "".join(f"the teammate's {k}" for k in theirs) or "none"
            assert words[f"{agent}_choice"][row] == ("hands are full" if held else choice)


def test_derived_variables_say_where_the_teammate_is(task, demos):
    derived = task.add_derived_variables(demos)
    names = derived.state_names["alice_teammate"]
    seen = set()
    for row in range(0, demos.num_steps, 5):
        one, other = (
            task.grid.cells[demos.state_variables[f"{agent}_cell"][row]] for agent in task.agents
        )
        for (x, y), agent in ((other - one, "alice"), (one - other, "rob")):
            where = [
                ("left" if x < 0 else "right") if x else "",
                ("above" if y < 0 else "below") if y else "",
            ]
            words = " ".join(word for word in where if word) or "here"
            words = f"far {words}" if max(abs(x), abs(y)) > 1 else words
            assert names[derived.state_variables[f"{agent}_teammate"][row]] == words
            seen.add(words)
    assert len(seen) > 12


def test_derived_variables_leave_everything_else_as_it_was(task, demos):
    derived = task.add_derived_variables(demos.without_labels([3]))
    assert (derived.actions == demos.actions).all()
    assert (derived.latents == demos.without_labels([3]).latents).all()
    assert (derived.episodes == demos.episodes).all()
    assert derived.latent_names == demos.latent_names
    assert derived.action_names == demos.action_names
    assert (task_states(task, derived) == demos.states).all()


def test_the_true_model_reads_task_states_derived_variables_or_a_single_index(task, demos):
    index = btil.Demonstrations(
        demos.states,
        dict(zip(demos.agents, demos.actions.T, strict=True)),
        dict(zip(demos.agents, demos.latents.T, strict=True)),
        episodes=demos.episodes,
        num_states=task.num_states,
        num_actions=task.num_actions,
        num_latents=task.num_latents,
    )
    evidence = [
        btil.fit(task.true_model(), form, progress=False, dtype=np.float64).elbo
        for form in (demos, task.add_derived_variables(demos), index)
    ]
    assert evidence[1:] == pytest.approx([evidence[0]] * 2, rel=1e-12)


def test_states_of_another_task_are_refused(task, demos):
    other = btil.domains.movers("tiny")
    with pytest.raises(ValueError, match=r"alice_cell has .* values"):
        other.add_derived_variables(demos)
    strange = btil.Demonstrations({"x": [0], "y": [0]}, [[0, 0]], num_latents=5)
    with pytest.raises(ValueError, match=r"state variables x, y; expected those of"):
        task.add_derived_variables(strange)


def test_states_that_nobody_saw_are_refused_with_their_place(task, demos):
    cells = demos.state_variables["rob_cell"].copy()
    cells[demos.episode_starts[1] + 2] = -1
    states = {**demos.state_variables, "rob_cell": cells}
    unseen = demos.replace(states=states, missing="allow")
    with pytest.raises(ValueError, match="rob_cell was seen by nobody in episode 1, step 2"):
        task.add_derived_variables(unseen)


def test_the_recommended_model_is_symmetric_between_the_agents(task):
    model = task.recommended_model()
    for table in (model.policy, model.transition):
        alice, rob = (table.cpt.parents[agent] for agent in task.agents)
        swapped = [name.replace("alice", "?").replace("rob", "alice") for name in alice]
        assert tuple(name.replace("?", "rob") for name in swapped) == rob


@pytest.mark.filterwarnings("ignore:the model cannot learn from tables:btil.DataWarning")
def test_the_recommended_model_decodes_better_than_tables_over_the_whole_state(task):
    train = task.simulate(100, seed=1, max_steps=60).without_labels(np.arange(10, 100))
    test = task.simulate(40, seed=2, max_steps=60)
    whole_state = btil.TeamModel(
        policy=btil.DirichletCPT(task.policy_concentration, ("state",)),
        transition=btil.DirichletCPT(task.transition_concentration, ("state", "actions")),
    )
    errors = []
    for model, variables in (
        (whole_state, lambda demos: demos),
        (task.recommended_model(), task.add_derived_variables),
    ):
        posterior = btil.fit(model, variables(train), progress=False)
        decoded = posterior.decode(variables(test))
        errors.append(hamming_distance(test, decoded))
    assert (errors[1] < 0.6 * errors[0]).all()


def test_agents_in_another_order_or_of_other_names_are_refused(task, demos):
    # Actions and latents are read by position: another order would give wrong numbers silently.
    for agents in (task.agents[::-1], ("x", "y")):
        renamed = btil.Demonstrations(
            demos.state_variables,
            demos.actions,
            demos.latents,
            demos.episodes,
            agents=agents,
            num_states=task.state_sizes,
            num_actions=task.num_actions,
            num_latents=task.num_latents,
        )
        refused = f"agents are {', '.join(agents)}, those of {task.name} are alice, rob"
        with pytest.raises(ValueError, match=refused):
            btil.analysis.suboptimal_share(task, renamed)
        with pytest.raises(ValueError, match=refused):
            task.add_derived_variables(renamed)


def test_derived_variables_leave_a_modelers_own_variables(task, demos):
    tired = np.arange(demos.num_steps) % 3
    own = demos.replace(
        states={**demos.state_variables, "tired": tired},
        num_states={**task.state_sizes, "tired": 4},
        state_names={**task.state_names, "tired": ["no", "a bit", "much", "asleep"]},
    )
    derived = task.add_derived_variables(task.add_derived_variables(own))
    assert (derived.state_variables["tired"] == tired).all()
    assert derived.num_states["tired"] == 4
    assert derived.state_names["tired"] == ("no", "a bit", "much", "asleep")
    plain = task.add_derived_variables(demos)
    assert set(derived.num_states) == {*plain.num_states, "tired"}
