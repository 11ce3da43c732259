"""What each agent had in mind, as a table with a row per step."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from btil.analysis.metrics import decoded_latents, smoothed_beliefs
from btil.demonstrations import Demonstrations
from btil.files import replacing

if TYPE_CHECKING:
    import pandas as pd

TABLE_ENDINGS = (".csv", ".parquet", ".npz")


def decoded_table(
    demos: Demonstrations,
    decoded: Any,
    smoothed: Any | Mapping[str, Float[np.ndarray, "steps latents"]] | None = None,
) -> "pd.DataFrame":
    """What was decoded, by name, and how probable each latent is.

    Args:
        demos: The episodes.
        decoded: Latents of every step, as from `posterior.decode(demos)`; or the posterior, which
            decodes them without a look at the labels.
        smoothed: Their probabilities, as from `posterior.smooth(demos)`; or the posterior.

    Returns:
        A row per step: `episode`, `step`, `decoded_<agent>` and, with `smoothed`,
        `probability_<agent>_<latent>`.

    Raises:
        ValueError: If two columns would have the same name; if an array has another shape, or
            values that are no latents.

    Example:
        >>> table = decoded_table(demos, posterior)  # doctest: +SKIP
    """
    import pandas as pd

    columns: dict[str, np.ndarray] = {"episode": demos.episodes, "step": demos.step_in_episode}
    demos, paths = decoded_latents(demos, decoded)
    for agent, path in zip(demos.agents, paths.T, strict=True):
        # The last text is for -1: nothing, where the agent is away.
        texts = np.array([*demos.value_names(f"latent_{agent}"), ""])
        columns[f"decoded_{agent}"] = texts[path]
    believed = {} if smoothed is None else smoothed_beliefs(demos, smoothed)[1]
    for agent, beliefs in believed.items():
        names = demos.value_names(f"latent_{agent}")
        for name, belief in zip(names, beliefs.T, strict=True):
            column = f"probability_{agent}_{name}"
            if column in columns:  # as of "a" in "b_c" and of "a_b" in "c"
                raise ValueError(f"two columns of the table would have the name {column!r}")
            columns[column] = belief
    return pd.DataFrame(columns)


def write_table(table: "pd.DataFrame", path: str | PathLike[str]) -> None:
    """Write a table as `.csv`, `.parquet` or `.npz` (an array per column), whole or not at all.

    Raises:
        ValueError: If the ending is another one.
        OSError: If the file cannot be written.
    """
    ending = Path(path).suffix.lower()
    if ending not in TABLE_ENDINGS:
        raise ValueError(f"{path}: the ending must be {' or '.join(TABLE_ENDINGS)}")
    with replacing(path) as temporary, open(temporary, "xb") as handle:
        if ending == ".csv":
            table.to_csv(handle, index=False, lineterminator="\n")
        elif ending == ".parquet":
            table.to_parquet(handle, index=False)
        else:
            arrays = {str(name): _plain(column.to_numpy()) for name, column in table.items()}
            np.savez_compressed(handle, allow_pickle=False, **arrays)


def _plain(values: np.ndarray) -> np.ndarray:
    """Texts as NumPy's own, which need no pickle."""
    return values if values.dtype.kind in "biuf" else values.astype(np.str_)
