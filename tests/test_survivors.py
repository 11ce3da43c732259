"""What slips in the code have shown to be missing: each test notices one that no other did.

`scripts/try_slips.py` makes them.
"""

import numpy as np

from btil.suggestion.held_out import Stretches, moves
from btil.suggestion.scores import Prior, Reads, transition_grid
from btil.suggestion.search import Pool, Scored


def test_latents_stay_more_where_the_variable_that_they_go_with_keeps_its_value() -> None:
    reads = Reads(np.array([0, 1]), np.array([0, 0]), num_latents=2, num_values=2)
    pool = Pool(
        role="transition",
        agents=("ann",),
        reads=reads,
        columns={"x": np.array([0, 0]), "next x": np.array([0, 1])},
        names={"x": {"ann": "x"}, "next x": {"ann": "next_x"}},
        changes={"x": np.array([0, 1])},
        plain=transition_grid(2),
        keeping=None,
    )
    kept = Scored(("next x", "x"), 0.0, Prior("keeps", strength=1.0, stay=8.0), "x", 2)
    one_fold = Stretches(
        step=np.array([[0], [1], [2]]),
        pair=np.array([[-1], [0], [1]]),
        label=np.array([[0], [0], [1]]),
        fold=np.array([0]),
        fold_of_step=np.zeros(3, int),
        fold_of_pair=np.zeros(2, int),
        episode=np.array([0]),
        agent=np.array([0]),
        num_folds=1,
    )
    # Nothing is counted in other folds: the prior alone speaks.
    _, keeps, changes = moves(pool, kept, one_fold)[:, 0]
    np.testing.assert_allclose(keeps, [[0.9, 0.1], [0.1, 0.9]])
    np.testing.assert_allclose(changes, 0.5)
