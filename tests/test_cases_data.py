"""Small cases with known right answers, of how data are read: 15 to 21, 35 and 36.

Exact values are from enumeration in double precision.
"""

import re
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from enumeration import exact_posterior
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv
from pyarrow import parquet
from teams import hmm_model
from typer.testing import CliRunner, Result

import btil
from btil.cli import app
from btil.demonstrations.coding import NOTHING, texts_for_unknown
from btil.demonstrations.tables import read_as_seen, told
from btil.domains import record
from btil.inference.result import DirichletRows, FitResult
from btil.models.team import bind

Table = dict[str, Any]


def frame_of(**columns: list[Any]) -> pd.DataFrame:
    """A table of one agent, ann, of whom nothing else is told than what is given."""
    steps = len(next(iter(columns.values())))
    others = {"state": [0] * steps, "action_ann": [k % 2 for k in range(steps)]}
    return pd.DataFrame(others | columns)


def csv_of(frame: pd.DataFrame, path: Path) -> btil.Demonstrations:
    frame.to_csv(path.with_suffix(".csv"), index=False)
    return btil.read_demonstrations(path.with_suffix(".csv"), num_latents=declared(frame))


def parquet_of(frame: pd.DataFrame, path: Path) -> btil.Demonstrations:
    parquet.write_table(pa.Table.from_pandas(frame), path.with_suffix(".parquet"))
    return btil.read_demonstrations(path.with_suffix(".parquet"), num_latents=declared(frame))


def by_parts(frame: pd.DataFrame, path: Path) -> btil.Demonstrations:
    parquet.write_table(pa.Table.from_pandas(frame), path.with_suffix(".parquet"))
    file = btil.open_demonstrations(path.with_suffix(".parquet"), num_latents=declared(frame))
    return file.read()


def npz_of(frame: pd.DataFrame, path: Path) -> btil.Demonstrations:
    texts = {c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])}
    columns = {c: frame[c].astype("U") if c in texts else frame[c] for c in frame}
    np.savez(path.with_suffix(".npz"), **{c: np.array(v.tolist()) for c, v in columns.items()})
    return btil.read_demonstrations(path.with_suffix(".npz"), num_latents=declared(frame))


def in_memory(frame: pd.DataFrame, path: Path) -> btil.Demonstrations:
    return btil.Demonstrations(
        frame[["state"]],
        {"ann": frame["action_ann"]},
        {"ann": frame["latent_ann"]} if "latent_ann" in frame else None,
        num_latents=declared(frame),
    )


def declared(frame: pd.DataFrame) -> int | None:
    return None if "latent_ann" in frame else 2


WAYS = {
    "csv": csv_of,
    "parquet": parquet_of,
    "parts": by_parts,
    "npz": npz_of,
    "memory": in_memory,
}
by_way = pytest.mark.parametrize("way", WAYS)


def made(demos: btil.Demonstrations) -> btil.TeamPosterior:
    """A posterior with tables drawn at random: nothing is compiled to have it."""
    bound = bind(hmm_model(), demos)
    generator = np.random.default_rng(0)
    rows = {s: DirichletRows(generator.gamma(2.0, 1.0, t.shape)) for s, t in bound.learned.items()}
    result = FitResult(rows, True, "made by hand")
    return btil.TeamPosterior(bound, "mfvi", result, 0, np.dtype(np.float64), 1.0)


def shell(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)), prog_name="btil", catch_exceptions=False)


# 15. Numerals that are names


@by_way
@pytest.mark.parametrize("column", ["state", "action_ann", "latent_ann"])
@pytest.mark.parametrize("texts", [["1e1", "10", "1e2"], ["007", "07", "7"], ["1.50", "1.5"]])
def test_numerals_that_are_names(way: str, column: str, texts: list[str], tmp_path: Path) -> None:
    demos = WAYS[way](frame_of(**{column: texts}), tmp_path / "table")
    assert demos.value_names(column) == tuple(sorted(texts))
    btil.write_demonstrations(demos, tmp_path / "again.csv")
    assert btil.read_demonstrations(tmp_path / "again.csv") == demos


@by_way
def test_plain_numerals_are_numbers(way: str, tmp_path: Path) -> None:
    frame = frame_of(state=["2.0", "1.0", "0.0"], latent_ann=["1", "-1", "0"])
    demos = WAYS[way](frame, tmp_path / "table")
    assert (demos.states.tolist(), demos.state_names) == ([2, 1, 0], {})
    assert (demos.latents.ravel().tolist(), demos.latent_names) == ([1, -1, 0], {})


@by_way
@pytest.mark.parametrize("column", ["state", "action_ann", "latent_ann"])
def test_two_spellings_of_one_number_are_refused(way: str, column: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{column}: episode 0, step 2: '1.0' and '1' are two"):
        WAYS[way](frame_of(**{column: ["0", "1", "1.0"]}), tmp_path / "table")


@by_way
def test_names_of_which_some_are_numbers_are_doubted(way: str, tmp_path: Path) -> None:
    with pytest.warns(
        btil.DataWarning, match=r"state: 'B' is not a number, so its .* \('1', '2'\)"
    ):
        demos = WAYS[way](frame_of(state=["1", "2", "B"]), tmp_path / "table")
    assert demos.state_names == {"state": ("1", "2", "B")}


def test_numbers_among_names_that_are_numerals(tmp_path: Path) -> None:
    """A text is the name. A number by its type may count the names, or be one: not in a file."""
    frame = frame_of(action_ann=[0, 1, 1], latent_ann=[0, 1, 0])
    names = {"action_names": ["1", "0"], "latent_names": ["a", "b"]}
    path = tmp_path / "table"
    frame.to_csv(path.with_suffix(".csv"), index=False)
    demos = btil.read_demonstrations(path.with_suffix(".csv"), **names)
    assert demos.actions.ravel().tolist() == [1, 0, 0]
    frame.to_parquet(path.with_suffix(".parquet"), index=False)
    for read in (btil.read_demonstrations, btil.open_demonstrations):
        with pytest.raises(ValueError, match="action_ann: episode 0, step 0: 0 is a number, but"):
            read(path.with_suffix(".parquet"), **names)
    assert btil.Demonstrations([0] * 2, [0, 1], **names).actions.ravel().tolist() == [0, 1]


# 16. Leftover categories


LEFT = pd.Categorical(["go", "stay", "go", "go"], categories=["a", "go", "halt", "stay", "z"])


@pytest.mark.parametrize("way", ["parquet", "parts", "memory"])
@pytest.mark.parametrize("column", ["state", "action_ann", "latent_ann"])
def test_leftover_categories(way: str, column: str, tmp_path: Path) -> None:
    demos = WAYS[way](frame_of(**{column: LEFT}), tmp_path / "table")
    plain = WAYS[way](frame_of(**{column: list(LEFT)}), tmp_path / "plain")
    assert demos == plain
    assert demos.value_names(column) == ("go", "stay")


def test_leftover_categories_with_declared_names_and_like(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    frame = frame_of(action_ann=LEFT, latent_ann=LEFT)
    parquet.write_table(pa.Table.from_pandas(frame), path)
    assert pa.types.is_dictionary(parquet.read_schema(path).field("action_ann").type)
    names = {"action_names": ["stay", "go"], "latent_names": ["stay", "go"]}
    read = btil.read_demonstrations(path, **names)
    given = btil.Demonstrations([0] * 4, {"ann": LEFT}, {"ann": LEFT}, **names)
    assert read == given == btil.open_demonstrations(path, **names).read()
    assert read.actions.ravel().tolist() == [1, 0, 1, 1]
    assert btil.read_demonstrations(path, like=read) == read
    with pytest.raises(ValueError, match="latent_ann: episode 0, step 1: 'stay' is not allowed"):
        btil.read_demonstrations(path, action_names=["go", "stay"], latent_names=["go"])


def test_the_policy_of_a_categorical_has_no_third_action() -> None:
    """Dir(1), one latent, actions go and stay: half and half."""
    two = pd.Categorical(["go", "stay"], categories=["go", "jump", "stay"])
    demos = btil.Demonstrations([0, 0], {"ann": two}, [0, 0])
    model = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
    posterior = btil.fit(model, demos, "exact", progress=False)
    np.testing.assert_allclose(posterior.policy("ann"), [[[0.5, 0.5]]], atol=1e-12)


# 17. Intents named like nothing


NOTHINGS = ["None", "null", "NULL", "NA", "n/a", "N/A", "nan", "NaN", "<NA>", "#N/A", "-nan"]


@by_way
@pytest.mark.parametrize("text", NOTHINGS)
def test_intents_named_like_nothing_are_a_question(way: str, text: str, tmp_path: Path) -> None:
    frame = frame_of(latent_ann=["lift", text, "", text])
    with pytest.raises(ValueError, match="latent_ann: episode 0, step 1: ") as refused:
        WAYS[way](frame, tmp_path / "table")
    for said in (repr(text), f"unknown_labels=[{text!r}]", "unknown_labels=[]", "--unknown-labels"):
        assert said in str(refused.value)


def test_pandas_drops_no_other_spellings(tmp_path: Path) -> None:
    """What pandas reads as nothing is either an empty cell or a question."""
    from pandas._libs.parsers import STR_NA_VALUES

    assert STR_NA_VALUES - {""} <= NOTHING


def test_unknown_labels_say_which(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("x,action_a,latent_a\n0,0,None\n0,1,lift\n0,0,\n0,1,?\n0,0,99\n0,1,-1\n")
    parts = path.with_suffix(".parquet")
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    parquet.write_table(pa.Table.from_pandas(table.astype({"x": int, "action_a": int})), parts)
    readers: list[Callable[..., btil.Demonstrations]] = [
        lambda **given: btil.read_demonstrations(path, **given),
        lambda **given: btil.read_demonstrations(parts, **given),
        lambda **given: btil.open_demonstrations(parts, **given).read(),
        lambda **given: btil.Demonstrations(
            {"x": [0] * 6}, {"a": [0, 1] * 3}, {"a": table["latent_a"].tolist()}, **given
        ),
    ]
    for read in readers:
        kept = read(unknown_labels=["?", 99])
        assert kept.latent_names == {"a": ("None", "lift")}
        assert kept.latents.ravel().tolist() == [0, 1, -1, -1, -1, -1]
        dropped = read(unknown_labels=["None", "?", "99"])
        assert dropped.latent_names == {"a": ("lift",)}
        assert dropped.latents.ravel().tolist() == [-1, 0, -1, -1, -1, -1]
        with pytest.warns(btil.DataWarning, match=r"\('99'\) are read as names"):
            names = read(unknown_labels=[]).latent_names
        assert names == {"a": ("99", "?", "None", "lift")}
        with pytest.raises(ValueError, match="unknown_labels: a sequence of texts expected"):
            read(unknown_labels="None")
        with pytest.raises(ValueError, match="'None' cannot be both"):
            read(latent_names=["None", "lift"], unknown_labels=["None", "?", 99])
    with pytest.raises(ValueError, match=r"unknown_labels: texts or whole .* got 1\.5"):
        texts_for_unknown([1.5])
    # Names survive, whatever they look like.
    for ending in (".csv", ".parquet", ".npz"):
        btil.write_demonstrations(kept, tmp_path / f"kept{ending}")
        assert btil.read_demonstrations(tmp_path / f"kept{ending}") == kept
    shown = shell("info", path, "--unknown-labels", "None,?,99")
    assert shown.exit_code == 0
    assert "latent_a: lift\n" in shown.stdout
    assert "latent_a: None, lift\n" in shell("info", path, "--unknown-labels", "?,99").stdout
    refused = shell("info", path)
    assert refused.exit_code == 2
    assert "--unknown-labels 'None'" in refused.stderr


def test_numbers_that_mean_unknown_in_every_container(tmp_path: Path) -> None:
    """99 for unknown, as a number and as a text."""
    for cells in ([1, 99, 0], ["1", "99", "0"], [1.0, 99.0, 0.0], [1, 99, None]):
        given = btil.Demonstrations([0] * 3, [0, 1, 0], cells, unknown_labels=[99], num_latents=2)
        assert given.latents.ravel().tolist() == [1, -1, -1 if cells[2] is None else 0]
    # Only labels: elsewhere it is a value as any other.
    states = btil.Demonstrations([0, 99], [0, 1], [0, 1], unknown_labels=[99])
    assert states.states.tolist() == [0, 99]


@by_way
@pytest.mark.parametrize("column", ["state", "action_ann"])
def test_states_and_actions_named_like_nothing(way: str, column: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{column}: episode 0, step 1: .*'None'.*--unknown-labe"):
        WAYS[way](frame_of(**{column: ["go", "None", "go"]}), tmp_path / "table")


# 18. Two spellings of one text


COMPOSED, DECOMPOSED = "Zo\u00eb", "Zoe\u0308"


@by_way
@pytest.mark.parametrize("column", ["state", "action_ann", "latent_ann"])
def test_two_spellings_of_one_text(way: str, column: str, tmp_path: Path) -> None:
    assert unicodedata.normalize("NFD", COMPOSED) == DECOMPOSED
    texts = [COMPOSED, DECOMPOSED, "Al", DECOMPOSED]
    demos = WAYS[way](frame_of(**{column: texts}), tmp_path / "table")
    assert demos.value_names(column) == ("Al", COMPOSED)
    btil.write_demonstrations(demos, tmp_path / "again.npz")
    assert btil.read_demonstrations(tmp_path / "again.npz") == demos


@by_way
def test_names_that_look_alike_are_refused(way: str, tmp_path: Path) -> None:
    for other in ("push\u00a0box", "push\u200b box", "pu\u00adsh box"):
        with pytest.raises(ValueError, match=r"state: 'pu.*look alike in print"):
            WAYS[way](frame_of(state=["push box", other]), tmp_path / "table")


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz"])
def test_names_of_agents_and_variables_in_two_spellings(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"table{ending}"
    columns = {
        "salle_e\u0301": [0, 1],
        f"action_{DECOMPOSED}": [0, 1],
        f"latent_{COMPOSED}": [1, 0],
    }
    write(columns, path)
    demos = btil.read_demonstrations(path, num_latents={DECOMPOSED: 2})
    assert demos.agents == (COMPOSED,)
    assert list(demos.num_states) == ["salle_\u00e9"]
    assert demos.latents.ravel().tolist() == [1, 0]
    if ending == ".parquet":
        assert btil.open_demonstrations(path).read() == demos
    write(columns | {f"action_{COMPOSED}": [0, 0]}, path)
    with pytest.raises(ValueError, match="'action_Zo\u00eb' is given in two spellings"):
        btil.read_demonstrations(path, num_latents=2)


def write(columns: Table, path: Path) -> None:
    frame = pd.DataFrame(columns)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        np.savez(path, **columns)


def test_agents_that_look_alike_are_refused() -> None:
    nothing = np.zeros((2, 2), int)
    for agents in ([COMPOSED, DECOMPOSED], ["a b", "a\u00a0b"]):
        with pytest.raises(ValueError, match="agents"):
            btil.Demonstrations([0, 0], nothing, agents=agents, num_latents=2)
        with pytest.raises(ValueError, match=r"two spellings|look alike"):
            btil.Demonstrations([0, 0], {agent: [0, 0] for agent in agents}, num_latents=2)
    with pytest.raises(ValueError, match=r"state variables: .*look alike"):
        btil.Demonstrations({"a b": [0], "a\u00a0b": [0]}, [0], num_latents=1)
    with pytest.raises(ValueError, match=r"action_names: agent_0: .*each name may occur once"):
        btil.Demonstrations([0], [0], num_latents=1, action_names=[COMPOSED, DECOMPOSED])
    with pytest.raises(ValueError, match=r"episode: .*look alike"):
        btil.Demonstrations([0, 0], [0, 0], episodes=["a b", "a\u00a0b"], num_latents=1)


# 19. Labels and actions that count from 1


ACTIONS, LABELS = [0, 0, 1, 1, 0, 1], [1, 1, 2, 2, -1, -1]


@by_way
def test_labels_that_count_from_1(way: str, tmp_path: Path) -> None:
    frame = frame_of(action_ann=ACTIONS, latent_ann=LABELS)
    says = r"latent_ann: .*3 latents .*0 never occurs; .*subtract 1 .*num_latents=3 \(--num-latents"
    with pytest.warns(btil.DataWarning, match=says) as told:
        demos = WAYS[way](frame, tmp_path / "table")
    assert len(told) == 1
    # A third latent that no label names changes the answer.
    log_evidence = exact_posterior(bind(hmm_model(), demos)).log_evidence
    assert log_evidence == pytest.approx(-8.4433159108, abs=1e-9)


def test_labels_that_were_made_to_count_from_0() -> None:
    labels = [label - 1 if label > 0 else label for label in LABELS]
    demos = btil.Demonstrations([0] * 6, ACTIONS, labels)
    exact = exact_posterior(bind(hmm_model(), demos))
    assert exact.log_evidence == pytest.approx(-6.9640970329, abs=1e-9)
    np.testing.assert_allclose(exact.marginals["agent_0"][-2:, 0], [0.581633, 0.173469], atol=1e-6)


@by_way
def test_actions_that_are_never_seen(way: str, tmp_path: Path) -> None:
    frame = frame_of(action_ann=[0, 3, 3], latent_ann=[0, 1, 0])
    says = r"action_ann: .*4 actions .*1 never occurs \(nor does 1 other\); num_actions=4 declares"
    with pytest.warns(btil.DataWarning, match=says):
        WAYS[way](frame, tmp_path / "table")


def test_declared_and_named_sizes_are_not_doubted() -> None:
    states, actions = [0, 5, 0], [1, 1, 2]
    btil.Demonstrations(states, actions, [1, 1, -1], num_actions=3, num_latents=2)
    named = btil.Demonstrations(
        states, actions, [1, 1, -1], action_names=list("abc"), latent_names=list("ab")
    )
    # Neither are those that were inferred before.
    named.select([0]).without_labels().replace(episodes=[0, 1, 2])


def test_the_shell_warns_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    frame_of(action_ann=ACTIONS, latent_ann=LABELS).to_csv(path, index=False)
    for words in (["info"], ["fit", "--out", tmp_path / "p.nc", "--quiet", "--shared"]):
        told = shell(words[0], path, *words[1:])
        assert told.exit_code == 0
        lines = [line for line in told.stderr.splitlines() if line.startswith("warning: ")]
        assert len(lines) == 1, told.stderr
        assert f"{path}: latent_ann: the largest value is 2" in lines[0]
        assert "subtract 1" in lines[0]
    assert "latent_ann" not in shell("info", path, "--num-latents", 3).stderr


# 20. Codes after names


def learned_from_names() -> btil.Demonstrations:
    return btil.Demonstrations(
        {"where": ["door", "hall", "door", "yard"]},
        {"ann": ["push", "wait", "pull", "wait"]},
        {"ann": ["lift", "rest", "", "rest"]},
        episodes=[0, 0, 1, 1],
    )


CODES: dict[str, Table] = {
    "where": {"where": [0, 1], "action_ann": ["push", "wait"], "latent_ann": ["lift", "rest"]},
    "action_ann": {"where": ["door", "hall"], "action_ann": [1, 2], "latent_ann": ["", ""]},
    "latent_ann": {"where": ["door", "hall"], "action_ann": ["push"] * 2, "latent_ann": [0, -1]},
}


@pytest.mark.parametrize("column", CODES)
@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz"])
def test_codes_after_names(column: str, ending: str, tmp_path: Path) -> None:
    train = learned_from_names()
    posterior = made(train)
    path = tmp_path / f"codes{ending}"
    write(CODES[column], path)
    says = rf"codes\{ending}: {column}: episode 0, step 0: '?\d'? is a number, but .* have names"
    readers: list[Callable[[], Any]] = [
        lambda: btil.read_demonstrations(path, like=train),
        lambda: posterior.decode(path),
    ]
    if ending == ".parquet":
        readers.append(lambda: list(btil.open_demonstrations(path, like=train)))
    for read in readers:
        with pytest.raises(ValueError, match=says) as refused:
            read()
        assert "_names=" in str(refused.value)
    # Who says that the numbers count the names may read them.
    names = {f"{kind}_names": getattr(train, f"{kind}_names") for kind in ("state", "action")}
    said = btil.read_demonstrations(path, **names, latent_names=train.latent_names)
    assert posterior.decode(said).shape == (2, 1)
    posterior.save(tmp_path / "p.nc")
    told = shell("decode", tmp_path / "p.nc", path)
    assert (told.exit_code, told.stdout) == (2, "")
    assert f"{column}: episode 0, step 0: " in told.stderr


@pytest.mark.parametrize("kind", ["state", "action", "latent"])
def test_coded_numbers_after_names(kind: str, tmp_path: Path) -> None:
    """As `test_codes_after_names`, of columns that are coded in the file."""
    train = learned_from_names()
    column = {"state": "where", "action": "action_ann", "latent": "latent_ann"}[kind]
    plain = {"where": ["door"] * 3, "action_ann": ["push"] * 3, "latent_ann": ["rest"] * 3}
    codes = pa.array([None, 1, 0] if kind == "latent" else [1, 1, 0]).dictionary_encode()
    parquet.write_table(pa.table(plain | {column: codes}), tmp_path / "codes.parquet")
    row = 1 if kind == "latent" else 0
    with pytest.raises(ValueError, match=rf"{column}: episode 0, step {row}: 1 is a number, but"):
        btil.read_demonstrations(tmp_path / "codes.parquet", like=train)


@pytest.mark.parametrize("kind", ["state", "action", "latent"])
def test_codes_after_names_in_memory(kind: str) -> None:
    train = learned_from_names()
    posterior = made(train)
    codes = train.replace(**{f"{kind}_names": None})
    for ask in (posterior.decode, posterior.smooth, posterior.filter, posterior.log_likelihood):
        with pytest.raises(ValueError, match=f"{kind}_names of (where|ann): the values here are n"):
            ask(codes)
    # And the other way round, but that latents without names may be given some.
    if kind == "latent":
        assert_same(made(codes).decode(train), made(codes).decode(codes))
        return
    with pytest.raises(ValueError, match=f"{kind}_names of (where|ann): the values here have name"):
        made(codes).decode(train)


@pytest.mark.parametrize("column", ["where", "action_ann", "latent_ann"])
def test_names_after_codes_in_a_file(column: str, tmp_path: Path) -> None:
    numbers = {"state_names": None, "action_names": None, "latent_names": None}
    train = learned_from_names().replace(**numbers)
    path = tmp_path / "new.csv"
    texts = ["a", "b", "c"] if column != "latent_ann" else ["lift", "rest", "rest"]
    write(
        {"where": [0, 1, 2], "action_ann": [0, 1, 2], "latent_ann": [0, 1, 1]} | {column: texts},
        path,
    )
    for read in (made(train).decode, lambda path: btil.read_demonstrations(path, like=train)):
        with pytest.raises(
            ValueError, match=r"new\.csv: .*texts found, but its values were numbers"
        ):
            read(path)


def test_names_of_latents_that_had_none() -> None:
    codes = learned_from_names().replace(latent_names=None)
    named = codes.replace(latent_names=["one", "other"])
    assert made(codes).conformed(named) is named
    fewer = btil.Demonstrations({"where": ["door"]}, {"ann": ["push"]}, {"ann": ["other"]})
    with pytest.raises(ValueError, match="latent_names of ann: the values here have names"):
        made(codes).smooth(fewer)


def test_an_unlabelled_recording_needs_no_names_of_latents() -> None:
    train = learned_from_names()
    bare = train.without_labels()
    nameless = bare.replace(latent_names=None)
    posterior = made(train)
    np.testing.assert_array_equal(posterior.decode(nameless), posterior.decode(bare))


def test_names_that_differ_only_in_capitals_or_spaces_are_doubted() -> None:
    table = {"place": ["hall", "yard"], "action": ["Push", "push  door"], "latent": ["a", "A"]}

    def make(**changes: Any) -> btil.Demonstrations:
        columns = {**table, **changes}
        names = {"latent_names": {"ann": ["a", "A"]}} if changes.get("declared") else {}
        return btil.Demonstrations(
            {"place": columns["place"]},
            {"ann": columns["action"]},
            {"ann": columns["latent"]},
            **names,
        )

    message = "latent_ann: 'A' and 'a' differ only in capitals or spaces and are taken for two"
    with pytest.warns(btil.DataWarning, match=message):
        make()
    make(declared=True)
    with pytest.warns(btil.DataWarning, match="action_ann: 'Push door' and 'push  door' differ"):
        make(action=["push  door", "Push door"], latent=["a", "b"])
    with pytest.warns(btil.DataWarning, match="place: 'Hall' and 'hall' .*state_names"):
        make(place=["Hall", "hall"], latent=["a", "b"])


# 21. New data with fewer values


FEWER = "where,action_ann,latent_ann\nhall,wait,rest\nhall,pull,\n"


def test_new_data_with_fewer_values(tmp_path: Path) -> None:
    train = learned_from_names()
    posterior = made(train)
    path = tmp_path / "new.csv"
    path.write_text(FEWER)
    like = btil.read_demonstrations(path, like=train)
    for name in ("decode", "smooth", "filter", "predict_actions", "log_likelihood"):
        ask = getattr(posterior, name)
        for given in (path, str(path), posterior.conformed(path)):
            assert_same(ask(given), ask(like))
    assert posterior.conformed(path) == posterior.conformed(like) == like
    # The shell gives the same answers.
    posterior.save(tmp_path / "p.nc")
    told = shell("decode", tmp_path / "p.nc", path, "--use-labels")
    names = np.array(train.latent_names["ann"])
    expected = names[posterior.decode(like, use_labels=True)[:, 0]]
    assert [line.split(",")[-1] for line in told.stdout.splitlines()[1:]] == expected.tolist()


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz"])
def test_new_data_with_more_columns(ending: str, tmp_path: Path) -> None:
    train = learned_from_names()
    posterior = made(train)
    path = tmp_path / f"new{ending}"
    plain = {"where": ["hall", "hall"], "action_ann": ["wait", "pull"], "latent_ann": ["rest", ""]}
    write(plain, path)
    like = btil.read_demonstrations(path, like=train)
    # Neither would do as a state variable.
    write(plain | {"time": [1700000000.9, 1700000001.8], "note": ["he said: ,", ""]}, path)
    assert btil.read_demonstrations(path, like=train) == like
    assert posterior.conformed(path) == like
    assert_same(posterior.decode(path), posterior.decode(like))
    posterior.save(tmp_path / "p.nc")
    told = shell("decode", tmp_path / "p.nc", path, "--out", tmp_path / f"out{ending}")
    assert told.exit_code == 0, told.stderr
    if ending == ".parquet":
        assert btil.open_demonstrations(path, like=train).read() == like
    # A column about a member who is not there is a slip.
    write(plain | {"present_amn": ["yes", "no"]}, path)
    for read in (posterior.decode, lambda path: btil.read_demonstrations(path, like=train)):
        with pytest.raises(ValueError, match="unknown column 'present_amn'"):
            read(path)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(found, dict):
        for agent, values in found.items():
            np.testing.assert_array_equal(values, expected[agent])
    else:
        np.testing.assert_array_equal(found, expected)


def test_demonstrations_with_fewer_values_are_matched_by_names(tmp_path: Path) -> None:
    train = learned_from_names()
    posterior = made(train)
    path = tmp_path / "new.csv"
    path.write_text(FEWER.replace("rest", ""))
    like = btil.read_demonstrations(path, like=train)
    alone = btil.read_demonstrations(path, num_latents=2)
    assert alone.actions.tolist() != like.actions.tolist()
    for name in ("decode", "smooth", "filter", "log_likelihood"):
        assert_same(getattr(posterior, name)(alone), getattr(posterior, name)(like))
    # Where the answer itself would be numbered in another way there is none.
    with pytest.raises(ValueError, match=r"action_names of ann differ: .*like=.*conformed"):
        posterior.predict_actions(alone)
    path.write_text(FEWER)
    labelled = btil.read_demonstrations(path)
    with pytest.raises(ValueError, match=r"latent_names of ann differ: rest here, lift, .*like"):
        posterior.decode(labelled.without_labels())
    conformed = posterior.conformed(labelled)
    assert conformed == btil.read_demonstrations(path, like=train)
    assert posterior.log_likelihood(labelled) == posterior.log_likelihood(conformed)
    # What is given the posterior itself has both in one numbering.
    error = btil.analysis.hamming_distance(labelled, posterior)
    assert error == btil.analysis.hamming_distance(conformed, posterior.decode(conformed))
    btil.analysis.plot_timeline(posterior, labelled, 0)


@pytest.mark.parametrize("kind", ["state", "action", "latent"])
def test_values_that_were_never_seen_are_refused_with_like(kind: str, tmp_path: Path) -> None:
    train = learned_from_names()
    posterior = made(train)
    path = tmp_path / "new.csv"
    path.write_text(FEWER.replace({"state": "hall", "action": "pull", "latent": "rest"}[kind], "n"))
    with pytest.raises(ValueError, match=rf"{kind}_names of .* differ: n here, .*like="):
        posterior.decode(btil.read_demonstrations(path))
    with pytest.raises(ValueError, match=r"new\.csv: .*'n' is not allowed; expected one of"):
        posterior.decode(path)


def test_new_files_may_have_more_columns_and_states_that_are_new_numbers(tmp_path: Path) -> None:
    train = btil.Demonstrations(
        {"x": [0, 1, 0]}, {"ann": [0, 1, 1], "bob": [0, 0, 1]}, num_latents=2
    )
    posterior = made(train)
    path = tmp_path / "new.csv"
    path.write_text("action_bob,notes,x,action_ann\n1,a,7,0\n0,b,0,1\n")
    assert posterior.decode(path).shape == (2, 2)
    assert posterior.conformed(path).num_states == {"x": 8}
    assert posterior.conformed(path).actions.tolist() == [[0, 1], [1, 0]]


def test_files_are_read_by_what_was_seen_before(tmp_path: Path) -> None:
    seen = btil.Demonstrations(
        {"x": [0, 1, 0], "where": ["a", "b", "a"]},
        {"ann": ["go", "wait", "go"], "bob": [0, 0, 1]},
        {"ann": ["lift", "", "rest"], "bob": [0, 1, 2]},
        continuous={"v": [0.5, 1.5, 2.5]},
    )
    path = tmp_path / "new.csv"
    header = "v,latent_ann,action_bob,notes,x,where,action_ann,latent_bob\n"
    path.write_text(f"{header}1.5,rest,1,n,4,b,wait,2\n,?,0,,0,a,go,\n")
    new = read_as_seen(path, seen, unknown_labels=["?"])
    assert (new.agents, new.num_states) == (("ann", "bob"), {"x": 5, "where": 2})
    assert (new.num_actions, new.num_latents) == ((2, 2), (2, 3))
    assert new.actions.tolist() == [[1, 1], [0, 0]]
    assert new.latents.tolist() == [[1, 2], [-1, -1]]
    np.testing.assert_array_equal(new.continuous["v"], [1.5, np.nan])
    # States of smaller numbers have room for those seen before.
    path.write_text(f"{header}1.5,rest,1,n,0,b,wait,2\n")
    assert read_as_seen(path, seen).num_states == {"x": 2, "where": 2}
    path.write_text(f"{header}1.5,rest,1,n,,b,wait,2\n,,,,0,,,\n")
    with pytest.raises(ValueError, match="x: episode 0, step 0: a missing value"):
        read_as_seen(path, seen)
    with pytest.raises(ValueError, match="where: episode 0, step 1: a missing value"):
        read_as_seen(path, seen.replace(states={"where": ["a", "b", "a"]}, num_states=None))
    for given in (
        read_as_seen(path, seen, missing="allow"),
        read_as_seen(path, seen.replace(missing="allow")),
    ):
        assert given.missing == "allow"
        assert given.state_variables["x"].tolist() == [-1, 0]
        assert given.actions.tolist() == [[1, 1], [-1, -1]]
    path.write_text(f"{header}1.5,rest,1,n,4,b,wait,2\n,,,,,,,\n")
    assert read_as_seen(path, seen, missing="allow").num_states == {"x": 5, "where": 2}
    path.write_text(f"{header}1.5,rest,1,n,,b,wait,2\n,,,,,,,\n")
    # Of a state that nobody saw at all the values are those seen before.
    ended = read_as_seen(path, seen, missing="allow", drop_last=True)
    assert (ended.num_steps, ended.num_states) == (1, {"x": 2, "where": 2})


def test_a_file_is_told_of_in_a_line() -> None:
    assert told(ValueError("the  row\n is wrong"), ".csv") == "the row is wrong"
    assert told(KeyError("x"), ".csv") == "damaged, or no .csv table: 'x'"
    assert told(EOFError(), ".npz") == "damaged, or no .npz table: EOFError"
    assert told(ValueError("a" * 1000), ".csv") == "a" * 1000
    assert told(ValueError("a" * 1001), ".csv") == "a" * 1000 + "..."


# 35. A new environment's old habits


class Old(ParallelEnv):
    """An environment of two agents and three steps, with the answers of older PettingZoo."""

    metadata = {"name": "old"}  # noqa: RUF012  # as PettingZoo has it
    possible_agents = ["ann", "bob"]  # noqa: RUF012

    def __init__(self, first: Callable[[Any], Any], next_: Callable[[tuple], Any]) -> None:
        self.first, self.next = first, next_

    def observation_space(self, agent: str) -> Discrete:
        return Discrete(4)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def observed(self) -> dict[str, int]:
        return dict.fromkeys(self.agents, self.count)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.count = ["ann", "bob"], 0
        return self.first(self.observed())

    def step(self, actions: Any) -> Any:
        self.count += 1
        over = dict.fromkeys(self.agents, self.count == 3)
        never, nothing = dict.fromkeys(over, False), {agent: {} for agent in over}
        seen = self.observed()
        self.agents = [] if self.count == 3 else self.agents
        return self.next((seen, dict.fromkeys(over, 0.0), over, never, nothing))


def play(first: Callable[[Any], Any], next_: Callable[[Any], Any]) -> btil.Demonstrations:
    policies = {"ann": lambda seen, _: seen % 2, "bob": lambda seen, _: 0}
    return record(Old(first, next_), policies, 2, progress=False)


def test_a_reset_that_returns_observations_alone() -> None:
    usual = play(lambda seen: (seen, {}), lambda answer: answer)
    assert usual.states.tolist() == [0, 1, 2] * 2
    assert play(lambda seen: seen, lambda answer: answer) == usual
    for first in (lambda seen: None, lambda seen: list(seen.values()), lambda seen: (1, 2)):
        with pytest.raises(ValueError, match=r"episode 0: reset\(\) of the environment must give"):
            play(first, lambda answer: answer)
    with pytest.raises(ValueError, match=r"episode 0, step 0: step\(\) .* it gave 4 things"):
        play(lambda seen: seen, lambda answer: (*answer[:3], answer[4]))


ENDS = {
    "episode": ["a", "a", "a", "b", "b"],
    "x": [0, 1, 2, 1, 3],
    "action_ann": ["go", "stay", None, "go", None],
    "action_bob": [1.0, 0.0, None, 0.0, None],
    "latent_ann": ["lift", None, None, "rest", None],
}


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_rows_with_a_state_and_no_action(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"ends{ending}"
    write(ENDS, path)
    refused = r"action_ann: episode 'a', step 2: a missing value .*drop_last=True .*--drop-last"
    with pytest.raises(ValueError, match=refused):
        btil.read_demonstrations(path, num_latents=2)
    kept = pd.DataFrame(ENDS).iloc[[0, 1, 3]]
    write({column: values.tolist() for column, values in kept.items()}, tmp_path / f"kept{ending}")
    expected = btil.read_demonstrations(tmp_path / f"kept{ending}", num_latents={"bob": 2})
    demos = btil.read_demonstrations(path, drop_last=True, num_latents={"bob": 2})
    assert demos == expected
    # The last states are no values of x.
    assert demos.num_states == {"x": 2}
    # Without such rows nothing is dropped.
    full = tmp_path / f"kept{ending}"
    assert btil.read_demonstrations(full, drop_last=True, num_latents={"bob": 2}) == expected
    told = shell("info", path, "--num-latents", 2)
    assert told.exit_code == 2
    assert "--drop-last" in told.stderr
    assert "steps           3" in shell("info", path, "--num-latents", 2, "--drop-last").stdout


def test_last_rows_are_dropped_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ends.parquet"
    parquet.write_table(pa.table(ENDS), path, row_group_size=2)
    monkeypatch.setattr("btil.demonstrations.row_groups.ROW_GROUP_STEPS", 2)
    whole = btil.read_demonstrations(path, drop_last=True, num_latents={"bob": 2})
    file = btil.open_demonstrations(path, drop_last=True, num_latents={"bob": 2})
    assert file.read() == whole
    assert (file.num_steps, file.num_episodes, len(list(file))) == (3, 2, 2)
    assert file.summary() == whole.summary()
    with pytest.raises(ValueError, match="action_ann: episode 'a', step 2: a missing value"):
        btil.open_demonstrations(path, num_latents=2)


def test_values_of_files_that_are_read_part_by_part_are_placed_among_the_steps(
    tmp_path: Path,
) -> None:
    """Of last rows that are no steps nothing is looked at, and no step is counted."""
    ends = ENDS | {"x": [9.5, 1, 2.5, 1.5, 3], "latent_bob": [1.0, None, None, 0.5, None]}
    parquet.write_table(pa.table(ends), tmp_path / "ends.parquet")
    for read in (btil.read_demonstrations, btil.open_demonstrations):
        with pytest.raises(ValueError, match=r"x: episode 'a', step 0: 9\.5 is not"):
            read(tmp_path / "ends.parquet", drop_last=True)
        with pytest.raises(ValueError, match=r"latent_bob: episode 'b', step 0: 0\.5 is not"):
            read(tmp_path / "ends.parquet", drop_last=True, continuous=["x"])


def test_minus_1_is_no_action_and_half_an_action_is_one(tmp_path: Path) -> None:
    path = tmp_path / "ends.npz"
    np.savez(path, x=[0, 1, 2], action_ann=[0, 1, -1], action_bob=[1, 0, -1])
    with pytest.raises(ValueError, match=r"action_ann: episode 0, step 2: -1 .*drop_last=True"):
        btil.read_demonstrations(path, num_latents=2)
    assert btil.read_demonstrations(path, num_latents=2, drop_last=True).num_steps == 2
    for idle, ann, bob in (("ann", -1, 0), ("bob", 0, -1)):
        np.savez(path, x=[0, 1, 2], action_ann=[0, 1, ann], action_bob=[1, 0, bob])
        with pytest.raises(ValueError, match=f"action_{idle}: episode 0, step 2: -1"):
            btil.read_demonstrations(path, num_latents=2, drop_last=True)
    np.savez(path, episode=[4, 4, 5], x=[0, 1, 2], action_ann=[0, 1, -1])
    with pytest.raises(ValueError, match="drop_last: episode 5 has one row, and that has no actio"):
        btil.read_demonstrations(path, num_latents=2, drop_last=True)


# 36. Messages that mislead


def noted(steps: int = 40) -> pd.DataFrame:
    """Two rooms and a column of notes."""
    return pd.DataFrame(
        {
            "room": [k % 2 for k in range(steps)],
            "notes": [f"remark {k}" for k in range(steps)],
            "action_ann": [k // 2 % 2 for k in range(steps)],
        }
    )


def test_a_column_of_notes_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    noted().to_csv(path, index=False)
    demos = btil.read_demonstrations(path, num_latents=2)
    says = (
        r"policy_ann \(40 contexts, read in 40 steps\), transition_ann \(39 contexts, read in 39 "
        r"steps\); leave out notes \(40 values\) if it is not a state; else name fewer parents "
    )
    with pytest.warns(btil.DataWarning, match=says):
        btil.fit(btil.TeamModel(), demos, max_iterations=1, progress=False)
    told = shell("info", path, "--num-latents", 2)
    assert told.exit_code == 0
    assert re.fullmatch(f"warning: without model options to btil fit, .*{says}.*\n", told.stderr)
    out = tmp_path / "p.nc"
    told = shell("fit", path, "--num-latents", 2, "--out", out, "--quiet", "--max-iterations", 1)
    assert told.exit_code == 0
    assert re.fullmatch(f"warning: .*{says}.*\n", told.stderr)
    # Where the model does not read the notes there is nothing to warn of.
    roomy = btil.TeamModel(btil.DirichletCPT(1.2, ("room",)), btil.DirichletCPT(1.01, ("room",)))
    btil.fit(roomy, demos, max_iterations=1, progress=False)


def test_few_steps_and_tables_that_share_are_not_crowded() -> None:
    from btil.models.crowding import crowded

    generator = np.random.default_rng(0)

    def told(steps: int, values: int, model: btil.TeamModel) -> list[str]:
        states = {v: generator.integers(0, values, steps) for v in "xyz"}
        demos = btil.Demonstrations(
            states, generator.integers(0, 2, steps), num_latents=2, num_actions=2
        )
        return list(crowded(bind(model, demos)))

    separate = btil.TeamModel()
    assert told(20, 3, separate) == []
    assert len(told(100, 9, separate)) == 1
    assert "leave out" not in told(100, 9, separate)[0]
    assert told(400, 3, separate) == []
    softmax = btil.SoftmaxCPT(parents=("state",))
    together = btil.TeamModel(softmax, btil.DirichletCPT(1.0))
    assert told(100, 9, together) == []


@pytest.mark.parametrize(("values", "sentences"), [(20, 0), (21, 1)])
def test_more_than_a_third_of_the_steps_is_crowded(values: int, sentences: int) -> None:
    from btil.models.crowding import crowded

    # Of two variables, of which none alone has as many values.
    steps = np.minimum(np.arange(60), values - 1)
    demos = btil.Demonstrations({"x": steps // 5, "y": steps % 5}, np.arange(60) % 2, num_latents=2)
    model = btil.TeamModel(btil.DirichletCPT(1.0, ("state",)), btil.DirichletCPT(1.0))
    assert len(list(crowded(bind(model, demos)))) == sentences


@pytest.mark.parametrize("kitchen", ["cramped_room", "asymmetric_advantages"])
def test_the_carried_kitchens_are_not_crowded(kitchen: str) -> None:
    from btil.models.crowding import crowded

    demos = btil.domains.overcooked.load(kitchen)
    model = btil.domains.overcooked.recommended_model(kitchen)
    assert list(crowded(bind(model, demos))) == []


def test_times_are_named_as_what_they_were_taken_for(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("time,x,action_a\n0.1,0,0\n0.2,1,1\n")
    with pytest.raises(ValueError, match=r"time: episode 0, step 0: '0.1' .*time is read as"):
        btil.read_demonstrations(path, num_latents=2)
    times = pd.date_range("2026-01-01", periods=2, freq="s")
    parquet.write_table(
        pa.table({"time": times, "x": [0, 1], "action_a": [0, 1]}), path.with_suffix(".parquet")
    )
    for read in (btil.read_demonstrations, btil.open_demonstrations):
        with pytest.raises(ValueError, match=r"time: episode 0, step 0: .*leave it out if"):
            read(path.with_suffix(".parquet"), num_latents=2)
    path.write_text("remarks,x,action_a\nwell,0,0\n,1,1\n")
    with pytest.raises(ValueError, match=r"remarks: episode 0, step 1: a missing .*leave it out"):
        btil.read_demonstrations(path, num_latents=2)


WRITTEN: dict[str, tuple[bytes, str]] = {
    "semicolons": (b"step;x;action_a\n0;0;0\n", "separated by ';', not by commas; save with comma"),
    "tabs": (b"step\tx\taction_a\n0\t0\t0\n", r"separated by '\\t', not by commas"),
    "Windows": (
        "x,action_a,latent_a\n0,0,ja\n1,1,Zo\u00eb\n".encode("cp1252"),
        "line 3, column 3 is not in UTF-8: '1,1,Zo\u00eb' .*cp1252.* save the file as CSV UTF-8",
    ),
    "Windows in the header": (
        "x,action_Zo\u00eb\n0,0\n".encode("cp1252"),
        "line 1, column 2 is not in UTF-8: 'x,action_Zo\u00eb'",
    ),
    "UTF-16": ("x,action_a\n0,0\n".encode("utf-16"), "in UTF-16, not in UTF-8; save it as CSV"),
    "steps from 1": (
        b"episode,step,x,action_a\n3,1,0,0\n3,2,0,1\n",
        "step: episode 3, step 0: found 1; .*count from 1 here: subtract 1, or leave the column st",
    ),
    "gaps": (
        b"step,x,action_a\n0,0,0\n1,0,1\n4,0,1\n",
        "step: episode 0, step 2: found 4; .*leave the column step out if the rows are all there",
    ),
    "step that is a time": (
        b"step,x,action_a\n0.1,0,0\n0.2,0,1\n",
        "step: episode 0, step 0: '0.1' .*leave the column step out",
    ),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_messages_name_what_was_taken_for_what(what: str, tmp_path: Path) -> None:
    contents, says = WRITTEN[what]
    path = tmp_path / "table.csv"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=says) as refused:
        btil.read_demonstrations(path, num_latents=2)
    assert str(refused.value).startswith(f"{path}: ")
    assert "damaged" not in str(refused.value)
    told = shell("info", path, "--num-latents", 2)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.count("\n") == 1


def test_a_file_without_one_agent_or_variable_says_so(tmp_path: Path) -> None:
    train = btil.Demonstrations({"x": [0, 1]}, {"ann": [0, 1], "bob": [0, 1]}, num_latents=2)
    made(train).save(tmp_path / "p.nc")
    path = tmp_path / "new.csv"
    for table, says in [
        ("x,action_ann\n0,0\n", "there is no column 'action_bob'; agents with actions are 'ann'"),
        ("x,action_ann,action_bob,action_eve\n0,0,0,0\n", "column 'action_eve': there was no such"),
        ("y,action_ann,action_bob\n0,0,0\n", "state variable 'x' is missing; the columns are 'y'"),
    ]:
        path.write_text(table)
        told = shell("decode", tmp_path / "p.nc", path)
        assert told.exit_code == 2
        assert f"error: {path}: {says}" in told.stderr
        with pytest.raises(ValueError, match=re.escape(says)):
            btil.load_posterior(tmp_path / "p.nc").smooth(path)


def test_no_warning_where_nothing_is_doubtful(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    frame_of(latent_ann=["lift", "rest", ""]).to_csv(path, index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        btil.read_demonstrations(path)
    assert shell("info", path).stderr == ""
