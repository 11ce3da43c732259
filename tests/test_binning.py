"""`btil.bin`: a continuous column as a state variable whose edges travel."""

import numpy as np
import pytest

import btil
from btil.demonstrations.binning import bin_edges

VALUES = [0.1, 0.5, 1.9999999999999998, 2.0, -3e-7, 40.0]


def _demos(**changes):
    given = {"continuous": {"gap": VALUES}, "num_latents": 2, "episodes": [0, 0, 0, 1, 1, 1]}
    return btil.Demonstrations({"cell": [0, 1] * 3}, [0, 1, 0, 1, 1, 0], **(given | changes))


def test_bins_hold_what_lies_between_their_edges():
    cut = btil.bin(_demos(), "gap", edges=[-1e-7, 0.5, 2.0])
    np.testing.assert_array_equal(cut.state_variables["gap_bin"], [1, 2, 2, 3, 0, 3])
    assert cut.num_states["gap_bin"] == 4
    assert cut.state_names["gap_bin"] == (
        "below -1e-07", "-1e-07 to 0.5", "0.5 to 2.0", "2.0 and above"
    )  # fmt: skip
    np.testing.assert_array_equal(cut.continuous["gap"], VALUES)
    by_number = btil.bin(_demos(), "gap", quantiles=3, name="near")
    edges = np.quantile(VALUES, [1 / 3, 2 / 3])
    np.testing.assert_array_equal(by_number.state_variables["near"], np.digitize(VALUES, edges))
    other = [9.0, 0.2, 0.3, 1.5, 1.0, -1.0]
    alike = btil.bin(_demos(continuous={"gap": other}), "gap", like=by_number, name="near")
    np.testing.assert_array_equal(alike.state_variables["near"], np.digitize(other, edges))
    assert alike.state_names["near"] == by_number.state_names["near"]


def test_two_bins_hold_half_of_what_was_seen_each():
    blank = _demos(continuous={"gap": [np.nan, *VALUES[1:]]}, missing="allow")
    for quantiles in (2, np.int64(2), [0.5]):
        cut = btil.bin(blank, "gap", quantiles=quantiles)
        np.testing.assert_array_equal(bin_edges(cut, "gap_bin"), [np.median(VALUES[1:])])
        np.testing.assert_array_equal(cut.state_variables["gap_bin"], [-1, 0, 1, 1, 0, 1])
    # An edge is a number too, and all that there was stays.
    one = btil.bin(_demos(), "gap", edges=0.5)
    assert one.state_names["gap_bin"] == ("below 0.5", "0.5 and above")
    assert one.num_states == {"cell": 2, "gap_bin": 2}
    named = _demos(state_names={"cell": ["a", "b"]}, num_states={"cell": 2})
    cut = btil.bin(named, "gap", edges=0.5)
    assert cut.state_names["cell"] == ("a", "b")
    with pytest.raises(ValueError, match="no value of gap was seen, so give edges"):
        btil.bin(_demos(continuous={"gap": [np.nan] * 6}, missing="allow"), "gap", quantiles=2)


@pytest.mark.parametrize(
    "names",
    [["a", "0.5 and above"], ["below 0.5", "more"], ["below 0.5"], ["below 1", "1 to 2", "x"]],
)
def test_names_that_are_no_bins_have_no_edges(names):
    demos = btil.Demonstrations(
        {"gap_bin": [0]}, [0], state_names={"gap_bin": names}, num_latents=1
    )
    with pytest.raises(ValueError, match=r"gap_bin has values .*, which are not bins"):
        bin_edges(demos, "gap_bin")


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_edges_travel_with_files_and_posteriors(tmp_path, ending):
    cut = btil.bin(_demos(), "gap", quantiles=[0.21, 0.9])
    path = tmp_path / f"cut.{ending}"
    btil.write_demonstrations(cut, path)
    again = btil.read_demonstrations(path)
    np.testing.assert_array_equal(bin_edges(again, "gap_bin"), np.quantile(VALUES, [0.21, 0.9]))
    model = btil.TeamModel(btil.DirichletCPT(1.0, parents=("gap_bin",)))
    posterior = btil.fit(model, again, progress=False)
    posterior.save(tmp_path / "one.nc")
    other = _demos(continuous={"gap": [9.0, 0.2, 0.3, 7.0, 1.0, -1.0]})
    held_out = btil.bin(other, "gap", like=btil.load_posterior(tmp_path / "one.nc").demos)
    assert posterior.policy("agent_0", {"gap_bin": [0, 1, 2]}).shape == (3, 2, 2)
    edges = np.quantile(VALUES, [0.21, 0.9])
    expected = np.digitize(other.continuous["gap"], edges)
    np.testing.assert_array_equal(held_out.state_variables["gap_bin"], expected)


def test_a_blank_is_a_state_that_nobody_saw():
    blank = {"gap": [*VALUES[:4], np.nan, 1.0]}
    with pytest.raises(ValueError, match=r"gap is blank at episode 1, step 1; .*missing='allow'"):
        btil.bin(_demos(continuous=blank), "gap", edges=[0.5])
    cut = btil.bin(_demos(continuous=blank, missing="allow"), "gap", edges=[0.5])
    np.testing.assert_array_equal(cut.state_variables["gap_bin"], [0, 1, 1, 1, -1, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of edges, quantiles and like"),
        ({"edges": [1], "quantiles": 2}, "exactly one of edges"),
        ({"edges": [2, 1]}, "allowed are finite numbers that increase"),
        ({"edges": []}, "allowed are finite numbers"),
        ({"edges": "x"}, "allowed are finite numbers"),
        ({"quantiles": 1}, "a number of bins, 2 or more"),
        ({"quantiles": True}, "a number of bins, 2 or more"),
        ({"quantiles": [0.5, 1.0]}, "probabilities between 0 and 1"),
        ({"edges": [1], "name": "cell"}, "'cell' is a state variable already"),
        ({"like": "no"}, "no state variable 'gap_bin' with names"),
        ({"edges": [1, 1]}, "allowed are finite numbers that increase"),
        ({"edges": [1, np.inf]}, "allowed are finite numbers that increase"),
        ({"edges": [[1, 2]]}, "allowed are finite numbers that increase"),
        ({"quantiles": [0.0, 0.5]}, "probabilities between 0 and 1"),
        ({"quantiles": [0.5, 0.5]}, "probabilities between 0 and 1 that increase"),
        ({"quantiles": []}, "a number of bins, 2 or more"),
        ({"quantiles": "x"}, "a number of bins, 2 or more"),
        ({"quantiles": 0.5}, "a number of bins, 2 or more"),
    ],
)
def test_what_is_wrong_is_refused(given, message):
    demos = _demos()
    if given.get("like"):
        given = {"like": demos}
    with pytest.raises(ValueError, match=message):
        btil.bin(demos, "gap", **given)
    with pytest.raises(ValueError, match="'state' cannot be used together with others"):
        btil.bin(
            btil.Demonstrations([0], [0], num_latents=1, continuous={"gap": [1.0]}),
            "gap",
            edges=[1],
        )
    with pytest.raises(ValueError, match="no continuous column 'gab'; there are"):
        btil.bin(demos, "gab", edges=[1])
    with pytest.raises(ValueError, match="too few different values for these quantiles"):
        btil.bin(_demos(continuous={"gap": [1.0] * 5 + [2.0]}), "gap", quantiles=4)
