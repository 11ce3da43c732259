"""The command line: what it prints, where, and with which exit code."""

import dataclasses
import io
import os
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from teams import made_by_hand
from typer.testing import CliRunner, Result

import btil
from btil.analysis.metrics import hamming_distance
from btil.cli import app
from btil.cli.app import FROM_CONSOLE
from btil.cli.learning import names_told, on_one_screen, parents_told
from btil.cli.options import METHOD, MODEL, READING
from btil.cli.reading import Reading, model_of
from btil.cli.telling import refuse_failure, summary
from btil.cli.together import join
from btil.demonstrations import Demonstrations, read_demonstrations, write_demonstrations
from btil.inference.method import method_names
from btil.inference.result import DrawnRows, MomentRows
from btil.models.team import bind
from btil.posterior.fit import method_options

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    "info",
    "fit",
    "decode",
    "compare",
    "report",
    "calibrate",
    "demo",
    "simulate",
    "reproduce",
    "collect",
)


def run(*arguments: object) -> Result:
    """Run `btil` in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="btil")


def run_apart(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `btil` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "btil", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(result: Result, *says: str, code: int = 2) -> None:
    """One line on standard error that starts with "error: ", and no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    for text in says:
        assert text in result.stderr


def team(num_episodes: int = 4, seed: int = 0, **changes) -> Demonstrations:
    """Ann and bob: they act by what they have in mind; half of the episodes are labelled."""
    generator = np.random.default_rng(seed)
    shape = (num_episodes * 5, 2)
    latents = generator.integers(0, 2, shape)
    demos = Demonstrations(
        states={"x": generator.integers(0, 3, shape[0]), "y": generator.integers(0, 2, shape[0])},
        actions=np.where(generator.random(shape) < 0.9, latents, 1 - latents),
        latents=latents,
        episodes=np.repeat(np.arange(num_episodes), 5),
        agents=("ann", "bob"),
        num_states={"x": 3, "y": 2},
        num_actions=2,
        num_latents=2,
        latent_names=("help", "wait"),
    )
    return demos.without_labels(np.arange(num_episodes // 2)) if num_episodes > 1 else demos


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a space in its name, that holds the tables."""
    folder = tmp_path_factory.mktemp("my data")
    write_demonstrations(team(), folder / "team.csv")
    write_demonstrations(team(2, seed=1), folder / "new.parquet")
    return folder


@pytest.fixture(scope="module")
def fitted(folder: Path) -> tuple[Path, Result]:
    """A posterior that `btil fit` made."""
    out = folder / "team posterior.nc"
    options = ("--transition-parents", "", "--policy-parents", "x,y", "--initial", "dirichlet")
    return out, run("fit", folder / "team.csv", "--out", out, *options)


def test_fit_by_batches_reads_a_parquet_file_by_row_groups(folder: Path, monkeypatch) -> None:
    path = folder / "ten.parquet"
    write_demonstrations(team(10), path)
    monkeypatch.setattr("btil.cli.reading.read_demonstrations", None)
    options = ("--batch-size", 3, "--policy-parents", "x", "--num-latents", "2,2", "--quiet")
    result = run("fit", path, "--out", folder / "ten.nc", *options)
    assert result.exit_code == 0, result.output
    assert "epochs of batches" in result.stdout
    assert btil.load_posterior(folder / "ten.nc").bound.excerpt
    refused = run("fit", path, "--out", folder / "ten.nc", "--batch-size", 3, "--method", "gibbs")
    assert refused.exit_code == 2
    assert "gibbs has no option 'batch_size'" in refused.output


# ---------------------------------------------------------------------- help and version


def test_help_of_every_command_shows_an_example() -> None:
    overall = run("--help")
    assert overall.exit_code == 0
    for command in COMMANDS:
        assert f"  {command} " in overall.stdout
        result = run(command, "--help")
        assert result.exit_code == 0
        assert "Example" in result.stdout
        assert f"      btil {command}" in result.stdout
        assert "--debug" in result.stdout
        assert "\b" not in result.stdout


def test_no_arguments_show_the_help() -> None:
    result = run()
    assert "Usage: btil" in result.output
    assert "btil demo" in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit team.csv --sed 3", ("No such option: --sed", "--seed", "; see btil fit --help")),
        ("fit", ("Missing argument 'DATA'; see btil fit --help",)),
        ("fit team.csv -o p.nc --seed x", ("Invalid value for '--seed'", "; see btil fit --help")),
        ("nonsense", ("No such command 'nonsense'; see btil --help",)),
        ("--nonsense", ("No such option: --nonsense; see btil --help",)),
        ("collect --nonsense", ("No such option: --nonsense", "; see btil collect --help")),
        ("fit --method", ("Option '--method' requires an argument; see btil fit --help",)),
        ("fit a.csv --quiet=3", ("Option '--quiet' does not take a value; see btil fit --help",)),
        ("--version=3", ("Option '--version' does not take a value; see btil --help",)),
        ("collect export --out", ("requires an argument; see btil collect --help",)),
    ],
)
def test_a_command_that_is_misspelt_is_one_line(words: str, says: tuple[str, ...]) -> None:
    assert_refused(CliRunner().invoke(app, words.split(), prog_name="btil"), *says)


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"btil {btil.__version__}\n")


def last_line_of(code: str) -> str:
    """What a Python of its own prints last."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_help_loads_nothing_heavy() -> None:
    heavy = ("jax", "numpyro", "matplotlib", "arviz", "pandas", "pyarrow", "xarray")
    code = (
        "import sys; from btil.cli import app; app(['--help'], standalone_mode=False); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert last_line_of(code) == "[]"


def test_tables_without_parameters_do_without_numpyro(folder: Path) -> None:
    code = (
        "import sys, btil; "
        "demos = btil.Demonstrations([0, 0, 1, 1, 2], [0, 1, 1, 0, 1], num_latents=2); "
        "found = btil.fit(btil.TeamModel(), demos, progress=False); "
        f"found.save({str(folder / 'plain.nc')!r}); found.decode(demos); "
        "print('numpyro' in sys.modules)"
    )
    assert last_line_of(code) == "False"


def test_numpyro_is_whole_whatever_loads_arviz_first() -> None:
    """ArviZ leaves a module in its place that loads itself when something is asked of it."""
    for first in (
        "import btil.analysis.calibration.simulation",
        "from btil.models import parametric; parametric.unconstrained_shapes({})",
        "import btil; btil.NumpyroModel(print).name",
    ):
        code = (
            f"import arviz\n{first}\nimport numpyro\n"
            "print(numpyro.distributions.distribution.__name__)"
        )
        assert last_line_of(code) == "numpyro.distributions.distribution"


def test_the_console_command_is_the_one_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"btil": "btil.cli:main"}


def test_as_a_process(folder: Path) -> None:
    done = run_apart("info", folder / "team.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert "episodes        4" in done.stdout
    refused = run_apart("info", folder / "none.csv")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr == f"error: {folder / 'none.csv'}: No such file or directory\n"


# ---------------------------------------------------------------------- info


def test_info_shows_sizes_names_and_parents(folder: Path) -> None:
    result = run("info", folder / "team.csv")
    assert (result.exit_code, result.stderr) == (0, "")
    assert str(team().summary()) in result.stdout
    assert "latent_ann: help, wait" in result.stdout
    assert "next_<state>" in result.stdout
    assert "action_ann,\n                   action_bob" in result.stdout


def test_info_on_carried_data() -> None:
    result = run("info", "overcooked:cramped_room:test")
    assert result.exit_code == 0
    assert "episodes        4" in result.stdout
    assert "latent_player_0: take onion, fill pot" in result.stdout
    # One screen; the rest for those who ask.
    assert len(result.stdout.splitlines()) <= 24
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "(--all shows all)" in result.stdout
    everything = run("info", "overcooked:cramped_room:test", "--all").stdout
    assert str(btil.domains.overcooked.load("cramped_room", "test").summary()) in everything
    # These names have commas of their own.
    assert "pots: none, none; none, empty; none, filling; " in everything
    assert "episodes        8" in run("info", "overcooked:cramped_room").stdout


@pytest.mark.parametrize("sizes", ["3", "3,3"])
def test_number_of_latents_of_a_foreign_file(tmp_path: Path, sizes: str) -> None:
    path = tmp_path / "foreign.csv"
    path.write_text("x,action_ann,action_bob\n0,0,1\n1,1,0\n", encoding="utf-8")
    assert_refused(run("info", path), "foreign.csv", "latent_ann")
    result = run("info", path, "--num-latents", sizes)
    assert result.exit_code == 0
    assert "ann          2        3      0.0%" in result.stdout
    assert "none: values are numbers" in result.stdout


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("overcooked:nowhere", "unknown layout 'nowhere'"),
        ("overcooked:cramped_room:dev", "split is 'dev'"),
        ("overcooked:cramped_room:test:1", "overcooked:LAYOUT[:train|test]"),
        ("overcooked:", "unknown layout ''"),
        ("team.xlsx", "the ending must be one of .csv, .parquet, .npz"),
        ("days", "error: days: No such file or directory"),
        ("days/", "error: days: No such file or directory"),
    ],
)
def test_info_refuses_other_data(
    data: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team.xlsx").touch()
    assert_refused(run("info", data), says)


def test_number_of_latents_that_is_none(folder: Path) -> None:
    assert_refused(run("info", folder / "team.csv", "--num-latents", "two"), "--num-latents")
    assert_refused(run("info", "overcooked:cramped_room", "--num-latents", 2), "--num-latents")


# ---------------------------------------------------------------------- fit


def test_fit_saves_what_it_was_asked_for(folder: Path, fitted: tuple[Path, Result]) -> None:
    out, result = fitted
    assert result.exit_code == 0, result.output
    assert "method     mfvi, seed 0, float32" in result.stdout
    assert "converged  yes: " in result.stdout
    assert "learned    policy_ann: " in result.stdout
    assert "learned    transition_bob: 1 x 2 x 2 cells" in result.stdout
    # What to type next is quoted for the shell.
    assert f"btil decode '{out}' '{folder / 'team.csv'}'" in result.stdout
    posterior = btil.load_posterior(out)
    assert posterior.demos == team()
    assert posterior.bound.table("policy", "ann").contexts.names == ("x", "y")
    assert posterior.bound.table("transition", "ann").contexts.names == ()
    assert set(posterior.bound.learned) >= {"initial_ann", "initial_bob"}


def test_seed_and_options_are_those_of_the_fit(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.nc"
    options = ("--num-restarts", 2, "--tolerance", 0.5, "--max-iterations", 3, "--seed", 5)
    learned = ("--transition-parents", "", "--policy-parents", "x,y", "--initial", "dirichlet")
    result = run("fit", folder / "team.csv", "--out", out, "-q", *options, *learned)
    assert result.exit_code == 0, result.output
    posterior = btil.load_posterior(out)
    assert posterior.seed == 5
    assert posterior.options == {"num_restarts": 2, "tolerance": 0.5, "max_iterations": 3}
    assert len(posterior.result.restart_traces) == 2


def test_quiet_fit_says_nothing_on_standard_error(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "[policy]\nparents = ['x']\nshared = true\n\n[transition]\nfamily = 'uniform'\n"
    model = tmp_path / "my model.toml"
    model.write_text(text, encoding="utf-8")
    out = tmp_path / "p.nc"
    result = run("fit", folder / "team.csv", "--model", model, "-o", out, "--quiet", "--seed", 3)
    assert (result.exit_code, result.stderr) == (0, "")
    assert capfd.readouterr().err == ""
    posterior = btil.load_posterior(out)
    assert list(posterior.bound.learned) == ["policy"]
    assert posterior.seed == 3


def test_fit_that_does_not_converge_warns(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.nc"
    result = run("fit", folder / "team.csv", "--out", out, "--max-iterations", 1, "--shared")
    assert result.exit_code == 0
    assert "warning: mfvi did not converge: " in result.stderr
    assert "converged  NO: " in result.stdout
    assert set(btil.load_posterior(out).bound.learned) == {"policy", "transition"}


def test_fit_by_chains_tells_whether_they_agree(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.nc"
    sizes = ("--num-chains", 2, "--num-warmup", 5, "--num-samples", 20)
    result = run(
        *("fit", folder / "team.csv", "--method", "gibbs", "--out", out, *sizes, "-q"),
        *("--policy-parents", "x", "--transition-parents", "", "--policy-concentration", 2.5),
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert "largest R-hat" in result.stdout
    posterior = btil.load_posterior(out)
    assert posterior.options == {"num_chains": 2, "num_warmup": 5, "num_samples": 20}
    table = posterior.bound.table("policy", "ann")
    assert (table.cpt.concentration(table.contexts) == 2.5).all()


def test_fit_that_fails_exits_with_1_and_saves_nothing(
    folder: Path, tmp_path: Path, fitted: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = btil.load_posterior(fitted[0])
    rows = {
        name: one._replace(concentration=np.full_like(one.concentration, np.nan))
        for name, one in good.result.rows.items()
    }
    broken = dataclasses.replace(
        good, result=good.result._replace(rows=rows, converged=False, reason="it is not finite")
    )
    monkeypatch.setattr("btil.posterior.fit.fit", lambda *_, **__: broken)
    result = run("fit", folder / "team.csv", "--out", tmp_path / "p.nc", "--quiet")
    assert_refused(result, "the mfvi fit failed: it is not finite", code=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--method", "magic"), "unknown method 'magic'; there are mfvi"),
        (("--num-chains", 2), "mfvi has no option 'num_chains'; it has"),
        (
            ("--method", "gibbs", "--keep-rows", -1),
            "keep_rows must be a whole number of at least 0",
        ),
        (("--max-iterations", 0), "max_iterations"),
        (("--seed", -1), "seed must be"),
        (("--policy-parents", "z"), "unknown parent 'z'"),
        (("--policy-parents", "x,,y"), "--policy-parents is 'x,,y'"),
        (("--policy-parents", "actions"), "policy: 'actions' cannot be a parent"),
        (("--policy-concentration", -1), "policy: concentration must be positive"),
        (("--initial", "static"), "initial: unknown family 'static'"),
        (("--model", "none.toml"), "none.toml: No such file"),
        (("--model", "none.toml", "--shared"), "--model describes the whole model"),
    ],
)
def test_fit_refuses_bad_options(folder: Path, tmp_path: Path, options, says: str) -> None:
    assert_refused(run("fit", folder / "team.csv", "-o", tmp_path / "p.nc", *options, "-q"), says)
    assert list(tmp_path.iterdir()) == []


def test_bad_model_file_is_one_line(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.toml"
    model.write_text("[policy]\nconcentraton = 1\n", encoding="utf-8")
    result = run("fit", folder / "team.csv", "--out", tmp_path / "p.nc", "--model", model)
    assert_refused(result, f"{model}: policy: unknown key", "'concentraton'", "'concentration'")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[policy]\nparents = {annn = ["x"], bob = ["x"]}', "policy: parents are given for annn"),
        ("[transition]\nconcentration = [1.0, 1.0, 1.0, 1.0]", "transition of ann: concentration"),
    ],
)
def test_a_model_file_that_does_not_suit_the_data(
    folder: Path, tmp_path: Path, text: str, says: str
) -> None:
    model = tmp_path / "model.toml"
    model.write_text(text)
    for command in ("fit", "compare", "report"):
        more = ("--out", tmp_path / ("p.nc" if command == "fit" else command))
        result = run(command, folder / "team.csv", "--model", model, *more)
        assert_refused(result, f"model.toml: {says}")


def test_output_is_checked_before_the_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read too early")

    monkeypatch.setattr("btil.cli.learning.read", refuse)
    assert_refused(run("fit", "team.csv", "-o", tmp_path / "p.txt"), "the ending must be .nc")
    (tmp_path / "taken.nc").mkdir()
    assert_refused(run("fit", "team.csv", "-o", tmp_path / "taken.nc"), "is a folder")
    result = run("fit", "team.csv", "-o", tmp_path / "none" / "p.nc")
    assert_refused(result, "there is no folder")
    assert_refused(run("decode", "p.nc", "team.csv", "-o", "table.txt"), "the ending must be .csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert_refused(run("fit", "team.csv", "-o", tmp_path / "p.nc"), "Permission denied")


# ---------------------------------------------------------------------- decode


def test_decode_prints_a_table_and_the_errors_apart(
    folder: Path, fitted: tuple[Path, Result]
) -> None:
    result = run("decode", fitted[0], folder / "new.parquet")
    assert result.exit_code == 0
    demos = team(2, seed=1)
    decoded = btil.load_posterior(fitted[0]).decode(demos)
    lines = result.stdout.splitlines()
    assert lines[0] == "episode,step,decoded_ann,decoded_bob"
    names = np.array(["help", "wait"])
    expected = [
        f"{episode},{step},{names[ann]},{names[bob]}"
        for episode, step, (ann, bob) in zip(
            demos.episodes, demos.step_in_episode, decoded, strict=True
        )
    ]
    assert lines[1:] == expected
    error = hamming_distance(demos, decoded)[0]
    assert f"error of ann: {error:.4f} (50.0% of the steps are labelled)" in result.stderr


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_decode_writes_tables(
    folder: Path, tmp_path: Path, fitted: tuple[Path, Result], ending: str
) -> None:
    out = tmp_path / f"decoded here.{ending}"
    result = run("decode", fitted[0], folder / "new.parquet", "--out", out, "--smooth")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"saved {out} (10 steps)" in result.stdout
    assert "error of bob: " in result.stdout
    if ending == "npz":
        with np.load(out, allow_pickle=False) as archive:
            table = pd.DataFrame({name: archive[name] for name in archive.files})
    else:
        table = getattr(pd, f"read_{ending}")(out)
    demos = team(2, seed=1)
    posterior = btil.load_posterior(fitted[0])
    smoothed = posterior.smooth(demos)["bob"]
    found = table[["probability_bob_help", "probability_bob_wait"]].to_numpy()
    np.testing.assert_allclose(found, smoothed, rtol=1e-6)
    names = np.array(["help", "wait"])
    assert table["decoded_bob"].tolist() == names[posterior.decode(demos)[:, 1]].tolist()
    assert table["step"].tolist() == [0, 1, 2, 3, 4] * 2
    assert list(tmp_path.iterdir()) == [out]


def test_decode_with_labels_keeps_them(folder: Path, fitted: tuple[Path, Result]) -> None:
    result = run("decode", fitted[0], folder / "team.csv", "--use-labels")
    assert result.exit_code == 0
    # The table has standard output to itself.
    assert result.stderr.splitlines() == [
        f"labels of {agent} used: 50.0% of the steps are labelled" for agent in ("ann", "bob")
    ]
    names = ["help", "wait"]
    rows = [line.split(",")[2:] for line in result.stdout.splitlines()[1:]]
    labels = team().latents
    assert (labels[10:] >= 0).all()
    assert rows[10:] == [[names[ann], names[bob]] for ann, bob in labels[10:]]


def test_labels_are_used_as_well_where_a_file_is_decoded_part_by_part(
    folder: Path, tmp_path: Path, fitted: tuple[Path, Result]
) -> None:
    out = tmp_path / "decoded.parquet"
    begin = ("decode", fitted[0], folder / "new.parquet", "--out", out)
    result = run(*begin, "--use-labels", "--smooth")
    assert "labels of bob used: 50.0% of the steps are labelled" in result.stdout
    table, labels = pd.read_parquet(out), team(2, seed=1).latents
    assert (labels[5:] >= 0).all()
    for position, agent in enumerate(("ann", "bob")):
        belief = table[[f"probability_{agent}_help", f"probability_{agent}_wait"]].to_numpy()
        assert np.array_equal(belief[5:], np.eye(2)[labels[5:, position]])
        assert 0 < belief[:5].min() < belief[:5].max() < 1
        names = np.array(["help", "wait"])[labels[5:, position]]
        assert table[f"decoded_{agent}"].tolist()[5:] == names.tolist()


def test_labels_that_are_used_are_certain(folder: Path, fitted: tuple[Path, Result]) -> None:
    result = run("decode", fitted[0], folder / "team.csv", "--use-labels", "--smooth")
    table = pd.read_csv(io.StringIO(result.stdout))
    for position, agent in enumerate(("ann", "bob")):
        belief = table[[f"probability_{agent}_help", f"probability_{agent}_wait"]].to_numpy()
        assert np.array_equal(belief[10:], np.eye(2)[team().latents[10:, position]])


def test_decode_of_a_foreign_file_with_new_states(
    tmp_path: Path, fitted: tuple[Path, Result]
) -> None:
    path = tmp_path / "foreign.csv"
    text = "x,y,action_ann,action_bob,latent_ann\n0,0,0,1,wait\n7,1,1,0,\n"
    path.write_text(text, encoding="utf-8")
    result = run("decode", fitted[0], path)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 3
    assert "error of ann" in result.stderr
    assert "error of bob" not in result.stderr


def test_decode_refuses_what_does_not_fit(
    folder: Path, tmp_path: Path, fitted: tuple[Path, Result]
) -> None:
    assert_refused(run("decode", folder / "team.csv", folder / "team.csv"), "not a posterior")
    assert_refused(run("decode", tmp_path / "none.nc", folder / "team.csv"), "none.nc")
    assert_refused(run("decode", fitted[0], "overcooked:cramped_room"), "player_0", "ann")
    path = tmp_path / "other.csv"
    path.write_text("x,y,action_ann,action_bob\n0,0,0,9\n", encoding="utf-8")
    assert_refused(run("decode", fitted[0], path), "action_bob", "9")


# ---------------------------------------------------------------------- compare


def test_compare_prints_a_table_and_writes_a_report(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "my report"
    arguments = (
        *("compare", folder / "team.csv", "--methods", "mfvi,gibbs", "--out", out),
        *("--test", folder / "new.parquet", "--policy-parents", "x", "--transition-parents", ""),
        *("--num-chains", 2, "--num-warmup", 10, "--num-samples", 40, "--quiet"),
        *("--num-draws", 20),
    )
    monkeypatch.setattr(sys, "argv", ["/somewhere/btil", *map(str, arguments)])
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    page = out / "report.html"
    assert result.stdout.splitlines()[-1] == f"report     {page}"
    assert "mfvi" in result.stdout
    assert "gibbs" in result.stdout
    # The report tells how it was made.
    assert "btil compare" in page.read_text(encoding="utf-8")
    assert "my report" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--methods", "mfvi,magic"), "unknown method 'magic'"),
        (("--methods", ""), "--methods is ''"),
        (("--methods", "mfvi,mfvi"), "twice"),
        (("--methods", "mfvi", "--num-chains", 2), "none of mfvi has the option --num-chains"),
        (("--methods", "mfvi", "--reference", "gibbs"), "reference: 'gibbs'"),
        (("--methods", "mfvi", "--test", "none.csv"), "none.csv: No such file"),
        (
            ("--methods", "mfvi", "--accuracy", 1.5),
            "accuracy must be a number strictly between 0 and 1",
        ),
        (("--share-labelled", 0.5), "--share-labelled goes with --simulate-truth"),
        (
            ("--simulate-truth", "--share-labelled", 1.5),
            "share_labelled must be a number from 0 to 1",
        ),
    ],
)
def test_compare_refuses_bad_options(folder: Path, tmp_path: Path, options, says: str) -> None:
    assert_refused(run("compare", folder / "team.csv", "--out", tmp_path / "r", *options), says)


def test_compare_learns_from_what_a_made_up_team_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def compare(model, demos, **given):
        asked.append((demos, given))
        raise ValueError("that will do")

    monkeypatch.setattr("btil.analysis.compare.compare", compare)
    numbers = ("--seed", 5, "--accuracy", 0.2, "--num-draws", 77)
    # A table of another tool, in which one of the two latents occurs.
    other = tmp_path / "other.csv"
    other.write_text("x,y,action_ann,action_bob,latent_ann\n0,0,0,1,wait\n", encoding="utf-8")
    for options in (("--simulate-truth", "--evidence", *numbers), (), ("--test", other)):
        arguments = ("compare", folder / "team.csv", "--out", tmp_path / "r", *options)
        assert_refused(run(*arguments), "that will do")
    (demos, given), (plain, as_it_is), (_, held_out) = asked
    assert given["evidence"]
    assert (given["seed"], given["accuracy"], given["num_draws"]) == (5, 0.2, 77)
    assert np.array_equal(demos.latents >= 0, team().latents >= 0)
    assert not np.array_equal(demos.actions, team().actions)
    assert given["test"].latents.min() >= 0
    assert "policy_ann" in given["truth"].tables
    # Without the option nothing is made up.
    assert plain == team()
    assert (as_it_is["truth"], as_it_is["test"], as_it_is["evidence"]) == (None, None, False)
    # Held-out data are read by the names of those that are learned from.
    assert held_out["test"].latent_names == team().latent_names
    assert held_out["test"].latents.tolist() == [[1, -1]]


def test_compare_refuses_a_file_as_folder(folder: Path) -> None:
    out = folder / "team.csv"
    result = run("compare", folder / "team.csv", "--out", out, "--methods", "mfvi")
    assert_refused(result, "not a folder")
    assert read_demonstrations(out) == team()


# ---------------------------------------------------------------------- errors in general


def test_debug_lets_the_traceback_through(folder: Path) -> None:
    for arguments in (("info", "none.csv", "--debug"), ("--debug", "info", "none.csv")):
        result = run(*arguments)
        assert isinstance(result.exception, FileNotFoundError)
        assert result.exit_code != 0
    done = run_apart("info", folder / "none.csv", "--debug")
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_usage_errors_exit_with_2() -> None:
    for arguments in (("fit",), ("fit", "team.csv"), ("nothing",), ("info", "a.csv", "--wrong")):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("btil.domains.overcooked.load", interrupt)
    result = run("info", "overcooked:cramped_room")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.strip() == "interrupted"


def test_interruption_before_a_command_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    # The module has the name of what it makes.
    monkeypatch.setattr(sys.modules["btil.cli.app"], "keep_programs", interrupt)
    result = CliRunner().invoke(app, ["info", "overcooked:cramped_room"], obj=FROM_CONSOLE)
    assert (result.exit_code, result.stderr.strip()) == (130, "interrupted")


def test_folders_that_were_made_for_nothing_are_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = folder / "team.csv", tmp_path / "made" / "for nothing"
    assert_refused(run("calibrate", data, "--share-labelled", 2, "--out", out), "share_labelled")
    compared = ("compare", data, "--methods", "mfvi,gibbs", "--reference", "nuts")
    assert_refused(run(*compared, "--out", out), "nuts")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("btil.posterior.fit.fit", interrupt)
    assert run("report", data, "--out", out).exit_code == 130
    assert list(tmp_path.iterdir()) == []
    # One that was there, or has something in it, stays.
    out.mkdir(parents=True)
    assert run("report", data, "--out", out).exit_code == 130
    assert out.is_dir()


def test_demo_refuses_a_file_as_folder_at_once(folder: Path) -> None:
    assert_refused(run("demo", "--out", folder / "team.csv"), "not a folder")


def test_the_shell_has_all_options_of_all_methods() -> None:
    of_methods = {option for name in method_names() for option in method_options(name)}
    arrays = {"start"}
    assert of_methods - arrays == METHOD.options.keys() - {"dtype"}
    for command in ("fit", "compare", "calibrate", "report"):
        told = run(command, "--help").output
        for option in [*METHOD.options, *MODEL.options, *READING.options]:
            assert f"--{option.replace('_', '-')}" in told


def test_options_of_methods_reach_them(folder: Path, tmp_path: Path) -> None:
    words = ["--method", "svi", "--guide", "AutoNormal", "--learning-rate", "0.05"]
    words += ["--num-particles", "2", "--max-iterations", "20", "--dtype", "float64"]
    done = run("fit", folder / "team.csv", "--out", tmp_path / "p.nc", "--quiet", *words)
    assert done.exit_code == 0, done.output
    fitted = btil.load_posterior(tmp_path / "p.nc")
    assert fitted.dtype == np.float64
    assert dict(fitted.options) == {
        "guide": "AutoNormal",
        "learning_rate": 0.05,
        "num_particles": 2,
        "max_iterations": 20,
    }


# ---------------------------------------------------------------------- what is handed on and told


class Task:
    """Stands for a grid world whose own team is quick to plan."""

    agents = ("alice", "rob")
    num_states = 1234

    def policies(self) -> dict[str, str]:
        return {agent: f"the true {agent}" for agent in self.agents}


class Picture:
    """Stands for a figure."""

    def savefig(self, path: Path) -> None:
        path.write_text("strip")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list:
    """What a command asks for, in order; nothing of it is done."""
    told: list = []

    def tell(name: str, answer: object) -> None:
        def stand_in(*given: object, **more: object) -> object:
            told.append((given, more))
            return answer(*given) if callable(answer) else answer

        monkeypatch.setattr(name, stand_in)

    tell("btil.cli.playing.task_named", Task())
    tell("btil.load_posterior", "a learned team")
    tell("btil.domains.playing.play", team(2))
    tell("btil.analysis.performance.team_performance", "it went well")
    pictures = "btil.domains.gridworld.pictures"
    tell(f"{pictures}.animate_episode", lambda *given: given[-1].write_text("film"))
    tell(f"{pictures}.plot_episode", Picture())
    return told


def test_play_lets_whom_play_that_was_asked_for(asked: list, tmp_path: Path) -> None:
    out, film = tmp_path / "played.csv", tmp_path / "film.gif"
    numbers = ("--num-episodes", 7, "--seed", 3, "--max-steps", 50, "--estimate", "draw")
    begin = ("play", "movers", "--map", "tiny", "--posterior", "p.nc", "--out", out, *numbers)
    done = run(*begin, "--true", "rob", "--picture", film, "--episode", 6)
    assert (done.exit_code, done.stderr) == (0, "planning for 1,234 states\n"), done.output
    assert done.stdout == (f"{team(2).summary()}\n\nit went well\n\nsaved {out}\nsaved {film}\n")
    assert read_demonstrations(out) == team(2)
    named, loaded, played, _, drawn = asked
    task = played[0][0]
    assert named == (("movers", "tiny"), {})
    assert loaded == ((Path("p.nc"),), {})
    members = {"alice": "a learned team", "rob": "the true rob"}
    assert played == ((task, members, 7, 3, 50), {"estimate": "draw"})
    assert drawn == ((task, team(2), 6, film), {})
    asked.clear()
    strip = tmp_path / "strip.png"
    done = run(*begin, "--picture", strip, "--quiet")
    assert (done.exit_code, done.stderr, strip.read_text()) == (0, "", "strip")
    assert asked[2][0][1] == dict.fromkeys(("alice", "rob"), "a learned team")
    assert asked[-1] == ((asked[2][0][0], team(2), 0), {})
    assert run(*begin, "--true", "alice", "--quiet").stderr == ""
    for more, says in (
        (("--true", "eve"), "--true: unknown agent 'eve'; there are alice, rob"),
        (("--picture", film, "--episode", 7), "episode: 7; allowed are whole numbers in 0..6"),
        (("--picture", "x.mp4"), "the ending must be .png or .svg or .pdf or .gif"),
        (("--out", "x.txt"), "the ending must be .csv or .parquet or .npz"),
    ):
        assert_refused(run(*begin, *more, "--quiet"), says)


def test_compare_hands_on_what_it_was_given_and_tells_what_came_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, told, reported, broken = tmp_path / "r" / "report.html", [], [], []

    class Comparison:
        def __init__(self, model: btil.TeamModel, demos: Demonstrations) -> None:
            elbo = {"elbo": np.nan} if broken else {}
            self.posteriors = {
                "mfvi": made_by_hand(model, demos, **elbo),
                "gibbs": made_by_hand(model, demos, converged=False, reason="too few sweeps"),
            }

        def report(self, *given: object) -> Path:
            reported.append(given)
            return page

    def compare(model: btil.TeamModel, demos: Demonstrations, **given: object) -> Comparison:
        told.append(given)
        return Comparison(model, demos)

    monkeypatch.setattr("btil.analysis.compare.compare", compare)
    printed: list = []
    monkeypatch.setattr("btil.analysis.demo.print_table", lambda *given: printed.append(given))
    begin = ("compare", folder / "team.csv", "--methods", "mfvi,gibbs", "--out", tmp_path / "r")
    numbers = ("--num-chains", 2, "--max-iterations", 9, "--num-played", 3, "--seed", 4)
    arguments = (*begin, *numbers, "--reference", "gibbs", "--every-row")
    monkeypatch.setattr(sys, "argv", ["/somewhere/btil", "compare", "my data.csv"])
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"report     {page}\n"
    assert done.stderr == "warning: gibbs did not converge: too few sweeps\n"
    assert reported == [(tmp_path / "r", "btil compare 'my data.csv'", None)]
    assert printed[0][1] is True
    (given,) = told
    assert given["options"] == {"mfvi": {"max_iterations": 9}, "gibbs": {"num_chains": 2}}
    assert (given["methods"], given["reference"], given["seed"]) == (["mfvi", "gibbs"], "gibbs", 4)
    assert (given["num_played"], given["progress"], given["test"]) == (3, True, None)
    quiet = run(*begin, "--quiet")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert printed[1][1] is False
    assert told[1]["progress"] is False
    broken.append(True)
    assert_refused(run(*begin), "the mfvi fit failed: made by hand", code=1)
    assert len(reported) == 2


def test_calibrate_hands_on_what_it_was_given_and_tells_what_came_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, page, excess = [], tmp_path / "c" / "page.html", {"averaged": (0.0123, 0.004)}

    class Found:
        def report(self, *given: object, **more: object) -> Path:
            told.append((given, more))
            return page

        def summary_table(self) -> str:
            return "a table"

        def overconfidence(self) -> dict[str, tuple[float, float]]:
            return excess

        def notes(self) -> list[str]:
            return ["few simulations", "wide bands"]

    def run_it(*given: object, **more: object) -> Found:
        told.append((given, more))
        return Found()

    monkeypatch.setattr("btil.analysis.calibration.calibrate", run_it)
    monkeypatch.setattr(sys, "argv", ["/somewhere/btil", "calibrate", "my data.csv"])
    out = tmp_path / "c"
    begin = ("calibrate", folder / "team.csv", "--out", out, "--policy-parents", "x")
    numbers = ("--num-simulations", 5, "--num-draws", 20, "--share-labelled", 0.5, "--seed", 4)
    numbers = (*numbers, "--method", "gibbs", "--num-chains", 2, "--num-episodes", 3)
    done = run(*begin, *numbers)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "a table",
        "latents: surer than right by +0.012 ± 0.004",
        "- few simulations",
        "- wide bands",
        f"page       {page}",
    ]
    ((model, demos, method), given), reported = told
    assert model.policy.parents == ("x",)
    assert demos == team().select(range(3))
    assert method == "gibbs"
    assert given == {
        "num_simulations": 5, "num_draws": 20, "share_labelled": 0.5, "seed": 4, "num_chains": 2,
        "progress": True, "directory": out / "simulations",
    }  # fmt: skip
    assert reported == ((out,), {"command": "btil calibrate 'my data.csv'"})
    excess.clear()
    told.clear()
    assert "surer" not in run(*begin, "--quiet").stdout
    assert told[0][1]["progress"] is False
    assert told[0][0][1:] == (team(), "mfvi")
    for number in (0, 5):
        says = f"--num-episodes is {number}; allowed are 1 to 4"
        assert_refused(run(*begin, "--num-episodes", number), says)


def test_decode_says_whose_latents_nobody_has_named(folder: Path, tmp_path: Path) -> None:
    demos = team().replace(latents={"ann": team().latents[:, 0]})
    posterior = made_by_hand(btil.TeamModel(), demos)
    dataclasses.replace(posterior, dtype=np.dtype(np.float32)).save(tmp_path / "p.nc")
    done = run("decode", tmp_path / "p.nc", folder / "new.parquet")
    assert done.exit_code == 0, done.output
    note, error = done.stderr.splitlines()
    assert note.startswith(f"note: {tmp_path / 'p.nc'} was learned without labels of bob: which")
    assert error.startswith("error of ann: ")
    done = run("decode", tmp_path / "p.nc", folder / "new.parquet", "--out", tmp_path / "d.csv")
    assert done.stdout.splitlines()[0] == f"saved {tmp_path / 'd.csv'} (10 steps)"
    assert done.stdout.splitlines()[1] == error
    assert done.stderr.splitlines() == [note]


def test_a_suggested_model_is_what_is_learned_with(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, fitted = [], []

    class Suggested:
        warnings = ("labels are few", "a column is refused")
        model = btil.TeamModel(btil.DirichletCPT(2.0, ("y",)))
        toml = "[policy]\n"

        def brief(self) -> str:
            return "found      policy: y"

        def words(self) -> str:
            return "policy of ann: y"

    def suggest(*given: object, **more: object) -> Suggested:
        asked.append((given, more))
        return Suggested()

    def fit(model: btil.TeamModel, demos: Demonstrations, *_: object, **given: object) -> object:
        fitted.append((model, given))
        return made_by_hand(model, demos)

    monkeypatch.setattr("btil.suggestion.suggest_model", suggest)
    monkeypatch.setattr("btil.posterior.fit.fit", fit)
    roles = ("--role", "x=ann_x", "--role", "y=a=b")
    begin = ("fit", folder / "team.csv", "--out", tmp_path / "p.nc", "--model", "auto")
    done = run(*begin, *roles, "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stderr == "warning: labels are few\nwarning: a column is refused\n"
    assert done.stdout.startswith("found      policy: y\n\nmethod     mfvi")
    assert fitted[0][0] is Suggested.model
    assert fitted[0][1]["progress"] is False
    assert asked == [((team(),), {"progress": False, "roles": {"x": "ann_x", "y": "a=b"}})]
    # By itself it prints a model file where none is asked for.
    done = run("suggest", folder / "team.csv", "--seed", 3)
    assert done.stdout == "policy of ann: y\n\n[policy]\n"
    assert done.stderr == "warning: labels are few\nwarning: a column is refused\n"
    assert asked[1] == ((team(),), {"seed": 3, "progress": True, "roles": {}})
    out = tmp_path / "my model.toml"
    done = run("suggest", folder / "team.csv", "--out", out, "--num-latents", 2)
    assert out.read_text() == "[policy]\n"
    assert done.stdout.splitlines()[1:] == [
        f"saved      {out}",
        "",
        f"next       btil fit '{folder / 'team.csv'}' --num-latents 2 --model '{out}' "
        "--out team.nc",
    ]
    assert_refused(run("suggest", "team.csv", "--out", "model.txt"), "the ending must be .toml")
    large = (begin[0], folder / "new.parquet", *begin[2:], "--batch-size", 1)
    assert_refused(run(*large), "--model auto needs the data in memory; leave out --batch-size")


def test_a_summary_tells_how_far_chains_agree() -> None:
    demos, generator = team(), np.random.default_rng(0)
    bound = bind(btil.TeamModel(), demos)
    rows: dict = {
        site: DrawnRows(generator.dirichlet(np.ones(table.shape[-1]), (2, 8, *table.shape[:-1])))
        for site, table in bound.learned.items()
    }
    site = "policy_ann"
    chains = {"rows": rows, "sample_stats": {"energy": np.zeros((2, 8))}}
    posterior = made_by_hand(
        btil.TeamModel(), demos, "gibbs", **chains, elbo=-3.25, elbo_standard_error=0.125
    )
    info, shape = posterior.draws_info.loc[site], bound.tables[site].shape
    lines = summary(posterior).splitlines()
    assert lines[0] == "method     gibbs, seed 0, float64, 1.0 s"
    assert lines[1] == "converged  yes: made by hand"
    assert lines[2] == "bound      -3.2500 (standard error 0.12)"
    told = (
        f"learned    {site}: {' x '.join(map(str, shape))} cells; largest R-hat of a cell "
        f"{info['max_rhat']:.3f}, {info['rows_above']} of {info['rows']} rows with a cell at 1.05 "
        f"or more, least ESS {info['min_ess_bulk']:.0f}"
    )
    assert lines[3] == told
    assert len(lines) == 3 + len(rows)
    drawn = rows[site].draws
    rows[site] = MomentRows(
        np.array([4, 4]), np.stack([drawn[:, :4].mean(1), drawn[:, 4:].mean(1)], 1),
        np.ones((2, 2, *shape)), np.arange(2), drawn[:, :, :2],
    )  # fmt: skip
    posterior = made_by_hand(btil.TeamModel(), demos, "gibbs", **chains, converged=False)
    split = posterior.draws_info.loc[site, "max_split_rhat"]
    lines = summary(posterior).splitlines()
    assert lines[1] == "converged  NO: made by hand"
    assert lines[2].endswith(f", largest split R-hat of rows without draws {split:.3f}")
    given = btil.TeamModel(btil.UniformCPT(), btil.StaticCPT())
    assert summary(made_by_hand(given, demos)).splitlines()[2:] == [
        "learned    nothing: every table is given"
    ]
    columns = demos.replace(continuous={"v": generator.normal(size=demos.num_steps)})
    given = btil.TeamModel(
        btil.UniformCPT(), btil.StaticCPT(), emissions={"bob": btil.NormalEmission(("v",))}
    )
    assert summary(made_by_hand(given, columns)).splitlines()[2:] == [
        "learned    emission_bob: 1 x 2 normals of v"
    ]


@pytest.mark.parametrize("index", [0, 1])
def test_processes_join_as_they_are_told(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("jax.distributed.initialize", lambda *g, **more: asked.append((g, more)))
    monkeypatch.setattr("jax.process_index", lambda: index)
    assert join(None)
    assert not asked
    assert join("auto") == (index == 0)
    assert join(f"fe80::1:12345,2,{index}") == (index == 0)
    noticed = {"heartbeat_timeout_seconds": 5}
    assert asked == [((), noticed), (("fe80::1:12345", 2, index), noticed)]
    for wrong in ("a:1,2", "a:1,2,x", "a:1,x,0", "a,2,0", "a:x,2,0", ":1,2,0", "a:1,2,0,0"):
        with pytest.raises(ValueError, match="allowed are auto, or HOST:PORT,N,K"):
            join(wrong)
    for wrong in ("a:1,2,2", "a:1,2,-1"):
        with pytest.raises(ValueError, match=r"--distributed: .*; allowed are whole .* in 0\.\.1"):
            join(wrong)
    assert len(asked) == 2


def test_fit_hands_on_what_it_was_given(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, first = [], [True]

    def fit(*given: object, **more: object) -> btil.TeamPosterior:
        asked.append((given, more))
        return made_by_hand(*given, converged=False, reason="it was cut")

    joined: list = []
    monkeypatch.setattr("btil.posterior.fit.fit", fit)
    monkeypatch.setattr("btil.cli.learning.join", lambda told: joined.append(told) or first[0])
    out, run_file = tmp_path / "p.nc", tmp_path / "run"
    begin = ("fit", folder / "team.csv", "--out", out, "--method", "gibbs", "--num-chains", 3)
    done = run(*begin, "--seed", 4, "--checkpoint", run_file, "--resume", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    ((given, more),) = asked
    assert given == (btil.TeamModel(), team(), "gibbs")
    assert more == {
        "seed": 4, "progress": True, "checkpoint": run_file, "resume": True, "num_chains": 3,
        "dtype": "float32",
    }  # fmt: skip
    assert joined == [None]
    assert done.stderr == "warning: gibbs did not converge: it was cut\n"
    assert done.stdout.endswith(
        f"saved      {out}\n\nnext       btil decode {out} '{folder / 'team.csv'}'\n"
    )
    assert btil.load_posterior(out).demos == team()
    out.unlink()
    first[0] = False
    done = run(*begin, "--distributed", "host:1,2,1", "--quiet")
    assert (done.exit_code, done.output, out.exists()) == (0, "", False)
    assert joined == [None, "host:1,2,1"]
    assert asked[1][1]["devices"] == jax.device_count()
    assert (asked[1][1]["progress"], asked[1][1]["checkpoint"], asked[1][1]["resume"]) == (
        False, None, False,
    )  # fmt: skip
    assert_refused(run(*begin, "--resume"), "--resume needs the --checkpoint FILE to go on from")
    monkeypatch.chdir(tmp_path)
    same = run(*begin, "--checkpoint", "p.nc")
    assert_refused(same, "p.nc: --out and --checkpoint must be two files")
    assert len(asked) == 2


def test_report_hands_on_what_it_was_given(
    folder: Path, tmp_path: Path, fitted: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, written = [], []

    class Written:
        summary = ("They were of one mind.", "Not always.")
        page = tmp_path / "d" / "debrief.html"

    def fit(*given: object, **more: object) -> btil.TeamPosterior:
        asked.append((given, more))
        return made_by_hand(*given, converged=False, reason="it was cut")

    def debrief(*given: object, **more: object) -> Written:
        written.append((given, more))
        return Written()

    monkeypatch.setattr("btil.posterior.fit.fit", fit)
    monkeypatch.setattr("btil.analysis.debriefing.debrief", debrief)
    monkeypatch.setattr(sys, "argv", ["/somewhere/btil", "report", "my data.csv"])
    out = tmp_path / "d"
    begin = ("report", folder / "team.csv", "--out", out)
    learned = ("--method", "gibbs", "--num-chains", 3, "--seed", 4, "--policy-parents", "x")
    done = run(*begin, *learned, "--max-episodes", 2, "--use-labels", "--no-relearn")
    assert done.exit_code == 0, done.output
    assert done.stdout == (f"- They were of one mind.\n- Not always.\npage       {Written.page}\n")
    assert done.stderr == "warning: gibbs did not converge: it was cut\n"
    ((model, demos, method), more) = asked[0]
    assert (model.policy.parents, demos, method) == (("x",), team(), "gibbs")
    assert more == {"seed": 4, "progress": True, "num_chains": 3}
    ((posterior, told, directory), given) = written[0]
    assert (posterior.model, told, directory) == (model, team(), out)
    assert given == {
        "max_episodes": 2, "task": None, "use_labels": True, "relearn": False,
        "command": "btil report 'my data.csv'", "progress": True, "suggestion": None,
    }  # fmt: skip
    assert btil.load_posterior(out / "posterior.nc").method == "gibbs"
    done = run(*begin, "--posterior", fitted[0], "--quiet")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    ((posterior, told, _), given) = written[1]
    assert posterior.method == "mfvi"
    assert told == posterior.demos
    assert given["max_episodes"] == 4
    assert (given["use_labels"], given["relearn"], given["progress"]) == (False, True, False)
    assert len(asked) == 1
    assert run(*begin, "--quiet").exit_code == 0
    assert (asked[1][0][2], asked[1][1]) == ("mfvi", {"seed": 0, "progress": False})


@pytest.mark.parametrize("out", [None, "decoded.csv", "decoded"])
def test_processes_decode_what_they_share(out: str | None, folder: Path, tmp_path: Path) -> None:
    told = "--distributed: DATA must be .parquet or a folder of such, and --out a folder"
    to = () if out is None else ("--out", tmp_path / out)
    data = folder / ("team.csv" if out == "decoded" else "new.parquet")
    assert_refused(run("decode", "p.nc", data, *to, "--distributed", "host:1,2,0"), told)


# ---------------------------------------------------------------------- words and lines


def test_names_are_told_in_one_line_for_each_column() -> None:
    assert names_told(team()) == ["  latent_ann: help, wait", "  latent_bob: help, wait"]
    many = [f"room {k:02}" for k in range(13)]
    demos = Demonstrations(
        {"room": [many[k % 13] for k in range(26)], "x": [0] * 26},
        {"ann": ["go", "stay, wait"] * 13, "bob": [0, 1] * 13},
        num_latents=2,
    )
    assert names_told(demos) == [
        "  action_ann: go; stay, wait",
        f"  room: {', '.join(many[:12])}, ... (13 in all)",
    ]
    assert names_told(demos.replace(state_names=None, action_names=None)) == []


def test_what_tables_may_read_is_told() -> None:
    told = parents_told(team())
    assert told[0] == "\nparents that a model may use"
    assert told[-1] == 19 * " " + "action_bob"
    assert all(len(line) <= 80 for line in told)
    own = Demonstrations(
        {"sky": [0], "bob_at": [0]}, {"ann": [0], "bob": [0]}, num_latents=2, num_actions=2
    )
    assert parents_told(own)[-1] == (
        "  all of them      also as each member sees it, such as own_at"
    )


def test_names_have_so_many_lines_no_wider_than_a_terminal() -> None:
    names = ["  a: b", "  c: " + 80 * "d", "  e: f"]
    assert on_one_screen(names[::2], 2) == ["\nnames", "  a: b", "  e: f"]
    assert on_one_screen(names, 3) == [
        "\nnames (--all shows all)", "  a: b", names[1][:76] + " ...", "  e: f",
    ]  # fmt: skip
    assert on_one_screen(names[::2], 1) == ["\nnames (--all shows all)", "  a: b"]
    wide = "x" * 80
    assert on_one_screen([wide], 1) == ["\nnames", wide]
    assert on_one_screen([], 5) == ["\nnames", "  none: values are numbers"]


def test_options_of_reading_are_told_as_they_were_given() -> None:
    assert Reading().words() == ""
    given = Reading(num_latents="2,3", unknown_labels="NA, ?", drop_last=True, missing="allow")
    assert given.words() == (
        " --num-latents 2,3 --unknown-labels 'NA, ?' --drop-last --missing allow"
    )
    assert Reading(continuous="a,b").words() == " --continuous a,b"
    assert given.arguments() == {
        "num_latents": [2, 3], "unknown_labels": ["NA", "?"], "drop_last": True,
        "missing": "allow", "continuous": (),
    }  # fmt: skip
    assert Reading(num_latents="4", continuous="a, b").arguments() == {
        "num_latents": 4, "unknown_labels": None, "drop_last": False, "missing": "refuse",
        "continuous": ["a", "b"],
    }  # fmt: skip
    assert Reading(unknown_labels="").arguments()["unknown_labels"] == []
    with pytest.raises(ValueError, match="--continuous is 'a,,b'; names separated by commas"):
        Reading(continuous="a,,b").arguments()
    with pytest.raises(ValueError, match="--num-latents is '2,x'; allowed are a whole number"):
        Reading(num_latents="2,x").arguments()


def test_a_model_is_what_options_say_a_file_or_the_recommended(tmp_path: Path) -> None:
    assert model_of("team.csv") == btil.TeamModel()
    overcooked = btil.domains.overcooked
    carried = overcooked.recommended_model("cramped_room")
    assert carried != btil.TeamModel()
    assert model_of("overcooked:cramped_room:test") == carried
    assert model_of("overcooked") == btil.TeamModel()  # a file of that name
    described = model_of(
        "overcooked:cramped_room", policy_parents="x, y", policy_concentration=2.0,
        transition_parents="", transition_concentration=0.5, initial="dirichlet",
    )  # fmt: skip
    assert described.policy == btil.DirichletCPT(2.0, ("x", "y"))
    assert described.transition == btil.DirichletCPT(0.5, ())
    assert described.initial == btil.DirichletCPT()
    shared = model_of("team.csv", transition_parents="x", shared=True)
    assert isinstance(shared.policy, btil.Shared)
    assert shared.transition.cpt.parents == ("x",)
    path = tmp_path / "model.toml"
    path.write_text("[policy]\nconcentration = 3.0\n")
    of_file = btil.TeamModel(btil.DirichletCPT(3.0, ("state",)))
    assert model_of("overcooked:cramped_room", model=path) == of_file
    assert model_of("team.csv", model=Path("auto"), role=["x=common"]) == btil.TeamModel()
    for given, told in (
        ({"model": path, "shared": True}, "--model describes the whole model"),
        ({"model": path, "initial": "uniform"}, "--model describes the whole model"),
        ({"role": ["x=common"]}, "--role goes with --model auto"),
        ({"model": path, "role": ["x=common"]}, "--role goes with --model auto"),
    ):
        with pytest.raises(ValueError, match=told):
            model_of("team.csv", **given)


def test_a_fit_that_gave_no_numbers_failed() -> None:
    posterior = made_by_hand(btil.TeamModel(), team())
    refuse_failure("mfvi", posterior)
    for elbo in (np.nan, np.inf, -np.inf):
        broken = dataclasses.replace(posterior, result=posterior.result._replace(elbo=elbo))
        with pytest.raises(ArithmeticError, match="the mfvi fit failed: made by hand"):
            refuse_failure("mfvi", broken)
    rows = dict(posterior.result.rows)
    one = rows["transition_bob"].concentration.copy()
    one[0, 1, 0] = np.nan
    rows["transition_bob"] = rows["transition_bob"]._replace(concentration=one)
    broken = dataclasses.replace(posterior, result=posterior.result._replace(rows=rows))
    with pytest.raises(ArithmeticError, match="the svi fit failed"):
        refuse_failure("svi", broken)


def test_simulate_and_reproduce_hand_on_what_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list = []

    class Movers:
        num_states = 1234

        def simulate(self, *given: object, **more: object) -> Demonstrations:
            asked.append((given, more))
            return team(2)

    class Share:
        over_episodes = 0.125

    def named(*given: object) -> Movers:
        asked.append(given)
        return Movers()

    monkeypatch.setattr("btil.cli.making.task_named", named)
    monkeypatch.setattr("btil.analysis.metrics.suboptimal_share", lambda *_: Share())
    out = tmp_path / "my demos.csv"
    numbers = ("--num-episodes", 7, "--seed", 3, "--max-steps", 50)
    done = run("simulate", "movers", "--map", "tiny", "--out", out, *numbers)
    assert done.exit_code == 0, done.output
    assert done.stderr == "planning for 1,234 states\n"
    assert done.stdout == (
        f"{team(2).summary()}\nat cross purposes: 12.5% of an episode's steps, on average\n"
        f"saved {out}\n\nnext       btil info '{out}'\n"
    )
    assert asked == [("movers", "tiny"), ((7,), {"seed": 3, "max_steps": 50})]
    assert read_demonstrations(out) == team(2)
    assert run("simulate", "movers", "--out", out, "--quiet").stderr == ""
    assert asked[2:] == [("movers", "paper"), ((200,), {"seed": 0, "max_steps": 200})]
    assert_refused(run("simulate", "movers", "--out", "x.txt"), "the ending must be .csv")

    asked.clear()

    class Made:
        files = (tmp_path / "table1.csv", tmp_path / "table1.md")

        def print(self) -> None:
            sys.stdout.write("a table\n")

    def make(*given: object, **more: object) -> Made:
        asked.append((given, more))
        return Made()

    monkeypatch.setattr("btil.analysis.reproduction.reproduce", make)
    monkeypatch.setattr(sys, "argv", ["/somewhere/btil", "reproduce", "a table"])
    options = ("--trials", 2, "--domain", "movers", "--methods", "random,btil", "--seed", 3)
    done = run("reproduce", "table1", "--out", tmp_path, *options, "--quick")
    assert done.stdout == f"a table\nsaved {Made.files[0]}\nsaved {Made.files[1]}\n"
    assert asked[0] == (
        ("table1", tmp_path),
        {
            "trials": 2, "domains": ["movers"], "methods": ["random", "btil"], "quick": True,
            "seed": 3, "progress": True, "command": "btil reproduce 'a table'",
        },
    )  # fmt: skip
    run("reproduce", "parents", "--out", tmp_path, "--quiet")
    assert asked[1][1] == {
        "trials": None, "domains": None, "methods": None, "quick": False, "seed": 0,
        "progress": False, "command": "btil reproduce 'a table'",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("two\n  lines"), 2, "two lines"),
        (TypeError("no option"), 2, "no option"),
        (OSError(28, "No space left on device", "big.nc"), 2, "big.nc: No space left on device"),
        (OSError("of a library"), 2, "of a library"),
        (FileNotFoundError("no such file: x"), 2, "no such file: x"),
        (ArithmeticError("not finite"), 1, "not finite"),
        (RuntimeError(), 1, "RuntimeError"),
        (MemoryError(), 1, "MemoryError"),
    ],
)
def test_what_goes_wrong_is_a_line_and_a_code(
    error: Exception, code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("btil.domains.overcooked.load", fail)
    words = ("info", "overcooked:cramped_room")
    assert_refused(run(*words), f"error: {told}\n", code=code)
    assert run("--debug", *words).exception is error
    error.add_note("what is complete is kept")
    assert_refused(run(*words), f"error: {told}; what is complete is kept\n", code=code)


def test_work_that_can_be_taken_up_again_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("btil.analysis.calibration.calibrate", interrupt)
    done = run("calibrate", folder / "team.csv", "--out", tmp_path / "c")
    told = f"interrupted; what is complete is kept in {tmp_path / 'c'}; the same command goes on"
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr == f"{told} from there\n"


def test_doubts_about_data_are_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubt(*_: object) -> None:
        for text in ("a name\n  looks odd", "a name\n  looks odd", "a size"):
            warnings.warn(text, btil.DataWarning, stacklevel=1)
        raise ValueError("enough")

    monkeypatch.setattr("btil.domains.overcooked.load", doubt)
    done = run("info", "overcooked:cramped_room")
    assert done.stderr.splitlines()[-1] == "error: enough"
    assert set(done.stderr.splitlines()[:-1]) == {"warning: a name looks odd", "warning: a size"}


@pytest.mark.parametrize(
    "option",
    [
        ("--num-latents", 2), ("--unknown-labels", "NA"), ("--drop-last",), ("--missing", "allow"),
        ("--continuous", "x"),
    ],
    ids=lambda option: option[0],
)  # fmt: skip
def test_carried_data_know_what_they_hold(option: tuple[object, ...]) -> None:
    told = f"{option[0]} is for files; carried data know what they hold"
    assert_refused(run("info", "overcooked:cramped_room", *option), told)
