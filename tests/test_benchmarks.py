"""The benchmarks of speed compare like with like; tiny sizes, dynamax left out."""

import ast
import importlib.util
from pathlib import Path

import e_step
import growth
import numpy as np
import on_gpu
import processes
import pytest
from against_hmmlearn import btil_fit, hmmlearn_fit, setting
from timing import side_by_side

import btil

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["benchmarks", "docs"])
def test_scripts_import_what_there_is(folder: str) -> None:
    # Some need packages that tests do without, so that nobody sees a name that has changed.
    wanted = {
        (node.module, alias.name, path.name)
        for path in (ROOT / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "btil"
        for alias in node.names
    }
    assert wanted
    missing = [
        f"{script}: {module}.{name}"
        for module, name, script in sorted(wanted)
        if not hasattr(importlib.import_module(module), name)
        and not importlib.util.find_spec(f"{module}.{name}")
    ]
    assert not missing


def test_both_forms_of_the_e_step_say_the_same() -> None:
    chains = e_step.draw_chains(np.array([3, 7, 1, 5]), 3)
    moves, likelihood, start = e_step.in_lanes(chains)
    programs = {
        "scaled": (e_step.ours, (moves, likelihood)),
        "logarithms": (e_step.ours_in_logs, (np.log(moves), np.log(likelihood), start)),
    }
    scaled, logarithms = (function(*given) for function, given in programs.values())
    for found, expected in zip(scaled[1:], logarithms[1:], strict=True):
        # At an episode's first step nothing is before: only sums over it have a meaning.
        here = np.asarray(start)[:, None] if found.ndim == 3 else np.asarray(start)[:, None, None]
        np.testing.assert_allclose(
            np.where(here, 0.0, found), np.where(here, 0.0, expected), rtol=1e-4, atol=1e-5
        )
    total = sum(evidence_of(chains, chain) for chain in range(4))
    assert float(scaled[0]) == pytest.approx(total, rel=1e-4)
    timings = side_by_side(programs, repeats=2)
    assert all(min(timing) > 0 for timing in timings.values())


def evidence_of(chains: e_step.Chains, chain: int) -> float:
    """The forward recursion, in a few lines."""
    belief = chains.initial[chain]
    total = 0.0
    for t in range(chains.lengths[chain]):
        joint = belief * chains.likelihood[chain, t]
        total += np.log(joint.sum())
        if t + 1 < chains.lengths[chain]:
            belief = joint / joint.sum() @ chains.transition[chain, t]
    return float(total)


def test_hmmlearn_and_btil_run_the_same_sweeps() -> None:
    demos, start = setting(episodes=4, steps=6, latents=2, values=3)
    ours = btil_fit(demos, start, 4, np.float64)
    theirs = hmmlearn_fit(demos, start, 4, "log")
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_random_teams_have_the_sizes_asked_for() -> None:
    demos = growth.random_team(steps=50, episodes=7, latents=3, agents=2, states=11)
    assert isinstance(demos, btil.Demonstrations)
    assert (demos.num_steps, demos.num_episodes, demos.num_agents) == (50, 7, 2)
    assert demos.num_latents == (3, 3)
    assert demos.num_states == {"state": 11}


def test_claims_about_gpus_are_checked_as_far_as_a_cpu_can() -> None:
    found = on_gpu.claims(small=True)
    assert len(found) == 6
    assert [claim.holds for claim in found[:2]] == [True, True]  # bytes of a step and of a cell
    assert found[-1].holds  # batches on four devices
    assert not any(claim.holds is False for claim in found)


def test_cost_on_paper() -> None:
    one, many = (
        processes.on_paper({"sweep": 1e-6}, steps=1e10, nodes=n, cells=1e6, bandwidth=1e9)
        for n in (1, 64)
    )
    assert one["compute_s"] == pytest.approx(1e4)
    assert one["message_s"] == 0
    assert many["compute_s"] == pytest.approx(1e4 / 64)
    assert many["message_s"] == pytest.approx(2 * 8e6 * 63 / 64 / 1e9)
    assert many["scratch_gb"] == pytest.approx(one["scratch_gb"] / 64)


def test_made_up_files_have_the_steps_asked_for() -> None:
    (part,) = processes.made_up(1_000)
    assert part.num_steps == 1_080
    assert part.num_latents == (5, 5)
