"""Decoded latents as a table, and what is asked of many draws of the tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from btil import Demonstrations
from btil.analysis.decoding import decoded_table, write_table
from btil.analysis.latent_draws import by_batches

PRESENT = np.array([[True, True], [True, False], [True, True]])
DEMOS = Demonstrations(
    [0, 0, 0],
    np.zeros((3, 2), int),
    episodes=["a", "a", "b"],
    agents=("ann", "bob"),
    present=PRESENT,
    num_actions=1,
    num_latents=(3, 2),
    latent_names={"bob": ("rest", "lift")},
)
PATH = np.array([[2, 1], [0, -1], [1, 0]])


def test_latents_stand_in_the_table_by_their_names() -> None:
    table = decoded_table(DEMOS, PATH)
    assert table.to_dict("list") == {
        "episode": ["a", "a", "b"],
        "step": [0, 1, 0],
        "decoded_ann": ["2", "0", "1"],
        "decoded_bob": ["lift", "", "rest"],
    }
    beliefs = {
        "ann": np.arange(9.0).reshape(3, 3),
        "bob": np.array([[0.2, 0.8], [np.nan, np.nan], [0.6, 0.4]]),
    }
    more = decoded_table(DEMOS, PATH, beliefs)
    assert list(more.columns[4:]) == [
        "probability_ann_0", "probability_ann_1", "probability_ann_2",
        "probability_bob_rest", "probability_bob_lift",
    ]  # fmt: skip
    np.testing.assert_array_equal(more.iloc[:, 4:7], beliefs["ann"])
    np.testing.assert_array_equal(more.iloc[:, 7:], beliefs["bob"])


def test_tables_are_written_in_the_form_that_the_ending_names(tmp_path: Path) -> None:
    table = decoded_table(DEMOS, PATH, {"ann": np.full((3, 3), 1 / 3), "bob": np.full((3, 2), 0.5)})
    for name in ("a.csv", "b.PARQUET", "c.npz"):
        write_table(table, tmp_path / name)
    text = (tmp_path / "a.csv").read_bytes()
    assert text.splitlines()[0].startswith(b"episode,step,decoded_ann,")
    assert b"\r" not in text
    read = pd.read_csv(tmp_path / "a.csv", keep_default_na=False, dtype={"decoded_ann": str})
    pd.testing.assert_frame_equal(read, table, check_dtype=False)
    read = pd.read_parquet(tmp_path / "b.PARQUET")
    pd.testing.assert_frame_equal(read, table, check_dtype=False)
    with np.load(tmp_path / "c.npz", allow_pickle=False) as arrays:
        assert list(arrays) == list(table.columns)
        for name, column in table.items():
            assert arrays[str(name)].tolist() == column.tolist()
    with pytest.raises(ValueError, match=r"d\.txt: the ending must be \.csv or \.parquet or \.npz"):
        write_table(table, tmp_path / "d.txt")


@pytest.mark.parametrize("number", [1, 64, 65, 130])
def test_draws_are_asked_in_batches_of_one_size(number: int) -> None:
    sizes = []

    def function(inputs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        first, second = inputs
        sizes.append(len(first))
        return first[:, None] * second

    first, second = np.arange(1.0, number + 1), np.random.default_rng(0).normal(size=(number, 2))
    found = by_batches(function, (first, second))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, first[:, None] * second)
    assert sizes == [64] * -(-number // 64)
