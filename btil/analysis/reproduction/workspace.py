"""The data that all trials of a run share: simulated or loaded once, kept in the output folder."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btil.analysis.reproduction.records import read_record, write_record
from btil.demonstrations import Demonstrations, read_demonstrations, write_demonstrations

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask
    from btil.imitation.learning import LearnedTeam

_DATA = "simulated episodes"


class Protocol(NamedTuple):
    """How much of everything: the paper's amounts, or little for a glance.

    Attributes:
        map: Map of the grid worlds.
        num_train: Training episodes simulated per domain.
        num_test: Test episodes simulated per domain.
        num_labelled: Of the training episodes, those with labels in the semi-supervised rows.
        max_steps: Steps after which an episode is cut.
        sizes: Training episodes given to the learner, for the figure of supervision.
        shares: Shares of these with labels.
        domains: Grid worlds and kitchens, where none are asked for.
        num_trials: Human trials used per kitchen, of training and test each; None: all.
        options: {method: its options}.
    """

    map: str
    num_train: int
    num_test: int
    num_labelled: int
    max_steps: int
    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    domains: tuple[str, ...]
    num_trials: int | None
    options: Mapping[str, Mapping[str, Any]]


class Split(NamedTuple):
    """Demonstrations to learn from and to be tested on.

    Attributes:
        train: With all their labels.
        test: With all their labels.
        fingerprint: Of both; other data, another fingerprint.
    """

    train: Demonstrations
    test: Demonstrations
    fingerprint: str


class Workspace:
    """Tasks and data of a run, made when they are first asked for.

    Simulated episodes are kept as `data/<domain>.parquet` in the folder, beside a record of how
    they were made.
    """

    def __init__(self, folder: Path, protocol: Protocol, seed: int) -> None:
        self.folder = folder
        self.protocol = protocol
        self.seed = seed
        # One cache per workspace: tasks and their tables are large.
        self.task = cache(self._make_task)
        self.split = cache(self._make_split)
        self.kitchen = cache(self._load_kitchen)
        # What trials have learned that others let act too.
        self.teams: dict[Any, LearnedTeam] = {}

    def _make_task(self, domain: str) -> "GridTask":
        from btil import domains

        return getattr(domains, domain)(self.protocol.map)

    def _make_split(self, domain: str) -> Split:
        settings = self._data_settings(domain)
        path = self._data_path(domain)
        record = path.with_suffix(".json")
        if path.exists():
            if not record.exists():
                raise ValueError(
                    f"{path}: {record.name}, which records how it was made, is missing; name "
                    "another folder, or delete the file and it is simulated again"
                )
            made = read_record(record, _DATA, settings)
            demos = read_demonstrations(path)
            if data_fingerprint(demos) != made.get("sha256"):
                raise ValueError(
                    f"{path}: not the episodes that {record.name} describes; delete both and they "
                    "are simulated again"
                )
        else:
            demos = self.simulate(domain, settings["episodes"], self.seed)
            path.parent.mkdir(exist_ok=True)
            # The record first: data without one are taken for somebody else's.
            write_record(record, _DATA, settings, {"sha256": data_fingerprint(demos)})
            write_demonstrations(demos, path)
        return _split(demos, self.protocol.num_train)

    def _data_path(self, domain: str) -> Path:
        return self.folder / "data" / f"{domain}.parquet"

    def _data_settings(self, domain: str) -> dict[str, Any]:
        return {
            "domain": domain,
            "map": self.protocol.map,
            "episodes": self.protocol.num_train + self.protocol.num_test,
            "max_steps": self.protocol.max_steps,
            "seed": self.seed,
        }

    def check_kept(self, domain: str) -> None:
        """Refuse data kept in the folder that cannot be used; where there are none, do nothing.

        Raises:
            ValueError: If they are damaged, not ours, or were made with other settings.
        """
        path = self._data_path(domain)
        record = path.with_suffix(".json")
        if path.exists():
            self.split(domain)
        elif record.exists():  # of a run that was stopped between the two, or not ours
            read_record(record, _DATA, self._data_settings(domain))

    def simulate(self, domain: str, num_episodes: int, seed: int) -> Demonstrations:
        """Episodes of the true team of a domain."""
        return self.task(domain).simulate(
            num_episodes, seed=seed, max_steps=self.protocol.max_steps
        )

    def _load_kitchen(self, layout: str) -> Split:
        from btil.domains.overcooked import load

        train, test = load(layout, "train"), load(layout, "test")
        if self.protocol.num_trials is not None:
            train, test = (
                demos.select(np.arange(min(self.protocol.num_trials, demos.num_episodes)))
                for demos in (train, test)
            )
        return Split(train, test, data_fingerprint(train, test))


def data_fingerprint(*parts: Demonstrations) -> str:
    """SHA-256 of sizes and values, whatever file they come from."""
    digest = hashlib.sha256()
    for demos in parts:
        digest.update(repr((demos.num_states, demos.num_actions, demos.num_latents)).encode())
        arrays = (*demos.state_variables.values(), demos.actions, demos.latents)
        for values in (*arrays, demos.episode_lengths):
            digest.update(np.ascontiguousarray(values, "<i8").tobytes())
    return digest.hexdigest()


def _split(demos: Demonstrations, num_train: int) -> Split:
    episodes = np.arange(demos.num_episodes)
    train, test = demos.select(episodes[:num_train]), demos.select(episodes[num_train:])
    return Split(train, test, data_fingerprint(demos))
