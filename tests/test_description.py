"""Team models as TOML: read, refused, written."""

import tomllib

import pytest

from btil.demonstrations import Demonstrations
from btil.models.cpt import (
    CPT,
    DirichletCPT,
    KnownCPT,
    Shared,
    StaticCPT,
    StickyDirichletCPT,
    UniformCPT,
)
from btil.models.description import describe, model_from_description, read_model
from btil.models.hierarchical import HierarchicalDirichletCPT, StickBreakingCPT
from btil.models.softmax import SoftmaxCPT
from btil.models.team import TeamModel, bind

TEXT = """
[policy]
family = "dirichlet"
concentration = 0.5
parents = {ann = ["ann_x"], bob = ["bob_x"]}
shared = true

[transition]
concentration = [[2.0, 0.1], [0.1, 2.0]]
parents = ["actions"]

[initial.agents.ann]
family = "uniform"

[initial.agents.bob]
family = "dirichlet"
"""


def same_model(one: TeamModel, other: TeamModel, agents=("ann", "bob")) -> bool:
    return all(
        one.family(role, agent) == other.family(role, agent)
        for role in ("policy", "transition", "initial")
        for agent in agents
    )


@pytest.fixture
def demos() -> Demonstrations:
    return Demonstrations(
        states={"ann_x": [0, 1, 1, 0], "bob_x": [2, 0, 1, 2]},
        actions={"ann": [0, 1, 0, 1], "bob": [1, 1, 0, 0]},
        num_latents=2,
    )


def test_text_becomes_the_model_it_says() -> None:
    expected = TeamModel(
        policy=Shared(DirichletCPT(0.5, parents={"ann": ("ann_x",), "bob": ("bob_x",)})),
        transition=DirichletCPT([[2.0, 0.1], [0.1, 2.0]], parents=("actions",)),
        initial={"ann": UniformCPT(), "bob": DirichletCPT(1.0, parents=())},
    )
    assert same_model(model_from_description(tomllib.loads(TEXT)), expected)


def test_a_read_model_binds(demos: Demonstrations) -> None:
    bound = bind(model_from_description(tomllib.loads(TEXT)), demos)
    assert list(bound.learned) == ["policy", "transition_ann", "transition_bob", "initial_bob"]
    # Values 0, 1 of ann_x and 0, 1, 2 of bob_x are one variable in the shared table.
    assert bound.tables["policy"].shape == (3, 2, 2)


def test_nothing_said_is_the_default_model() -> None:
    assert same_model(model_from_description({}), TeamModel())
    sections = {"policy": {}, "transition": {}, "initial": {}}
    assert same_model(model_from_description(sections), TeamModel())


def test_static_and_shared_uniform() -> None:
    model = model_from_description(
        {"transition": {"family": "static"}, "initial": {"family": "uniform", "shared": True}}
    )
    assert isinstance(model.transition, StaticCPT)
    assert model.initial == Shared(UniformCPT())


def test_agents_that_share_have_one_object() -> None:
    section = {"concentration": 2.0, "shared": True}
    model = model_from_description({"policy": {"agents": {"ann": section, "bob": dict(section)}}})
    assert model.family("policy", "ann") is model.family("policy", "bob")


@pytest.mark.parametrize(
    "model",
    [
        TeamModel(),
        TeamModel(transition=StaticCPT(), initial=DirichletCPT([0.1, 3.5], parents=())),
        TeamModel(policy=Shared(DirichletCPT(1e-3, parents={"ann": ("a",), "bob": ("b",)}))),
        TeamModel(initial={"ann": UniformCPT(), "bob": Shared(DirichletCPT(2.0))}),
        model_from_description(tomllib.loads(TEXT)),
        TeamModel(
            HierarchicalDirichletCPT(None, 1.5, parents=("x",), shared_base=True),
            StickyDirichletCPT([1.0, 2.0], stay=20.0, parents={"ann": ("x",), "bob": ("y",)}),
            StickBreakingCPT(2.0, strength=4.0),
        ),
        TeamModel(SoftmaxCPT(("x", "y"), bias_scale=0.5), HierarchicalDirichletCPT(3.0, stay=1.0)),
    ],
)
def test_described_and_read_again_is_the_same(model: TeamModel) -> None:
    assert same_model(model_from_description(tomllib.loads(describe(model))), model)


def test_names_that_need_quotes_survive() -> None:
    names = ('a "quoted" name', "naïve agent", "with.dot")
    model = TeamModel(
        policy=DirichletCPT(1.0, parents={name: (f"{name} x",) for name in names}),
        initial={name: UniformCPT() for name in names},
    )
    again = model_from_description(tomllib.loads(describe(model)))
    assert same_model(again, model, names)


def test_a_given_table_is_described_and_refused() -> None:
    text = describe(TeamModel(initial=KnownCPT([0.5, 0.5])))
    assert 'family = "KnownCPT"' in text
    with pytest.raises(ValueError, match=r"initial: unknown family 'KnownCPT'.*Python"):
        model_from_description(tomllib.loads(text))


def test_a_family_of_ones_own_is_described_by_its_class() -> None:
    class OwnCPT(CPT):
        pass

    assert 'family = "OwnCPT"' in describe(TeamModel(policy=OwnCPT()))
    own_features = SoftmaxCPT(("x",), features=lambda contexts: contexts["x"][:, None])
    assert 'family = "SoftmaxCPT"' in describe(TeamModel(policy=own_features))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"polcy": {}}, "unknown section: 'polcy'; allowed are 'policy', 'transition', 'initial'"),
        (
            {"policy": {"concentraton": 1.0}},
            "policy: unknown key of a dirichlet table: 'concentraton'; allowed are 'family', "
            "'concentration', 'parents', 'shared'",
        ),
        (
            {"transition": {"family": "normal"}},
            "transition: unknown family 'normal'; allowed are 'dirichlet', 'uniform', 'static'",
        ),
        ({"policy": {"family": "static"}}, "policy: unknown family 'static'; allowed are 'dir"),
        ({"policy": {"family": ["dirichlet"]}}, "policy: unknown family ['dirichlet']"),
        ({"initial": {"parents": []}}, "initial: unknown key of a uniform table: 'parents'"),
        ({"policy": {"concentration": "1.2"}}, "policy: concentration is '1.2'"),
        ({"policy": {"concentration": True}}, "policy: concentration is True"),
        ({"policy": {"concentration": -1.0}}, "policy: concentration must be positive"),
        ({"policy": {"concentration": [1.0, [2.0]]}}, "policy: "),
        ({"policy": {"parents": "state"}}, "policy: parents are 'state'; allowed are a list"),
        ({"policy": {"parents": [1]}}, "policy: parents are [1]"),
        ({"policy": {"parents": {"ann": "x"}}}, "policy: parents are {'ann': 'x'}"),
        ({"policy": {"parents": ["x", "x"]}}, "policy: parent named more than once: x"),
        ({"policy": {"parents": ["actions"]}}, "policy: 'actions' cannot be a parent"),
        ({"policy": {"shared": "yes"}}, "policy: shared is 'yes'; allowed are true and false"),
        ({"initial": {"family": "sticky"}}, "initial: unknown family 'sticky'"),
        ({"policy": {"family": "stick-breaking"}}, "policy: unknown family 'stick-breaking'"),
        (
            {"transition": {"family": "sticky", "stay": True}},
            "transition: stay is True; allowed are numbers",
        ),
        (
            {"policy": {"family": "hierarchical", "shared_base": 1}},
            "policy: shared_base is 1; allowed are true and false",
        ),
        (
            {"policy": {"family": "hierarchical", "stay": 1.0}},
            "stay is for a transition, not a policy",
        ),
        (
            {"policy": {"family": "hierarchical", "strength": -1}},
            "policy: strength must be a positive number, got -1.0",
        ),
        (
            {"policy": {"family": "softmax", "features": "x"}},
            "policy: unknown key of a softmax table: 'features'",
        ),
        ({"policy": 1.2}, "policy: 1.2 is not a table; write a section [policy]"),
        ({"policy": {"agents": ["ann"]}}, "policy.agents: ['ann'] is not a table"),
        ({"policy": {"agents": {"ann": 3}}}, "policy.agents.ann: 3 is not a table"),
        (
            {"policy": {"agents": {"ann": {}}, "shared": True}},
            "policy: unknown key beside 'agents': 'shared'; allowed are none",
        ),
        (
            {
                "policy": {
                    "agents": {"ann": {"shared": True}, "bob": {"shared": True, "parents": []}}
                }
            },
            "policy.agents.bob: differs from policy.agents.ann",
        ),
    ],
)
def test_wrong_descriptions_are_refused(description, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared below
        model_from_description(description)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing but a remark\n"])
def test_a_model_file_of_nothing_is_refused(text: str, tmp_path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"model\.toml: there is no section; .*\[policy\], "):
        read_model(path)


def test_a_model_file_of_an_editor_that_marks_its_bytes(tmp_path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(TEXT, encoding="utf-8-sig", newline="\r\n")
    assert same_model(read_model(path), model_from_description(tomllib.loads(TEXT)))


def test_read_model_names_its_file(tmp_path) -> None:
    path = tmp_path / "my model.toml"
    path.write_text(TEXT, encoding="utf-8")
    assert same_model(read_model(path), model_from_description(tomllib.loads(TEXT)))
    path.write_text("[policy\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"my model\.toml: "):
        read_model(path)
    path.write_text("[policy]\nfamily = 'x'\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"my model\.toml: policy: unknown family"):
        read_model(path)
    with pytest.raises(FileNotFoundError):
        read_model(tmp_path / "none.toml")
