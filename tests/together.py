"""Several processes of one run, on this machine: what tests of them share, and what they run.

Run as a program it is one of them: `together.py ADDRESS NUMBER PROCESS TASKS FOLDER`.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

LENGTHS = (5, 1, 14, 19, 2, 17, 3, 1, 1, 26, 12, 22)


def run_together(
    number: int, tasks: str | list[str], folder: Path, devices: int = 1
) -> list[tuple[int, str]]:
    """Run tasks, or a command of the shell, in so many processes; exit status and output of each.

    Tasks are run one after the other. A command finds the processes as Slurm would have started
    them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    root = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root.parent), str(root)]),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }

    def own(k: int) -> list[str]:
        return [str(root / "together.py"), address, str(number), str(k), tasks, str(folder)]

    def slurm(k: int) -> dict[str, str]:
        job = address.rsplit(":", 1)[1]
        settings = {"JOB_ID": job, "NTASKS": number, "PROCID": k, "LOCALID": k}
        settings |= {"STEP_NODELIST": "127.0.0.1", "STEP_NUM_NODES": 1}
        return {f"SLURM_{name}": str(value) for name, value in settings.items()}

    processes = [
        subprocess.Popen(
            [sys.executable, *(own(k) if isinstance(tasks, str) else ["-m", "btil", *tasks])],
            env=environment | (slurm(k) if not isinstance(tasks, str) else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(number)
    ]
    try:
        told = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, told, strict=True)]


def model() -> Any:
    """Tables with states, actions and next states as parents, one of them given."""
    from teams import rich_model

    return rich_model()


OPTIONS: dict[str, Any] = {"progress": False, "dtype": "float64", "seed": 3}
BATCHES = {**OPTIONS, "batch_size": 5, "max_iterations": 14}


def fits(folder: Path) -> dict[str, Any]:
    """What is fitted by several processes, and by one for comparison."""
    import jax

    import btil

    devices = jax.device_count()
    found = {}
    for name, data in (
        ("folder", btil.open_demonstrations(folder / "days")),
        ("file", btil.open_demonstrations(folder / "one.parquet")),
        ("memory", btil.read_demonstrations(folder / "all.npz")),
    ):
        found[name] = btil.fit(model(), data, devices=devices, **BATCHES)
    file = btil.open_demonstrations(folder / "one.parquet")
    found["whole"] = btil.fit(model(), file, batch_size=12, devices=devices, **OPTIONS)
    return found


def columns(folder: Path) -> dict[str, Any]:
    """Gaps, columns and covariates, from a file of many row groups and in memory."""
    import jax
    from test_emission_batches import model, team

    import btil
    from btil.inference import stochastic

    stochastic._SAMPLE_STEPS = 9
    options = {**OPTIONS, "batch_size": 3, "max_iterations": 6, "devices": jax.device_count()}
    file = btil.open_demonstrations(folder / "columns.parquet", missing="allow")
    return {
        "columns-file": btil.fit(model(), file, **options),
        "columns-memory": btil.fit(model(), team(), **options),
    }


def mesh_model() -> Any:
    """What all processes learn from the whole data, on the devices of all of them."""
    import btil

    return btil.TeamModel(
        btil.DirichletCPT(0.7, parents=("x",)), btil.DirichletCPT(0.9, parents=("actions",))
    )


def mesh(folder: Path) -> dict[str, Any]:
    """A fit without batches; each process saves what it needs to go on."""
    import jax
    import numpy as np

    import btil

    demos = btil.read_demonstrations(folder / "mesh.npz")
    options = {"dtype": np.float64, "progress": False, "devices": jax.device_count()}
    path = folder / "mesh.checkpoint"
    return {"mesh": btil.fit(mesh_model(), demos, checkpoint=path, **options)}


FITS = {"fits": fits, "columns": columns, "mesh": mesh}


def refused(folder: Path) -> list[str]:
    """What is told where one process finds what another cannot see."""
    import jax

    import btil

    told = []
    for name in ("broken", "twice"):
        try:
            sizes = {"num_states": {"x": 9, "y": 9}, "num_latents": 3, "num_actions": 4}
            data = btil.open_demonstrations(folder / name, **sizes)
            btil.fit(model(), data, batch_size=2, devices=jax.device_count(), **OPTIONS)
        except (ValueError, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def main() -> None:
    """One of the processes."""
    address, number, process, tasks, folder = sys.argv[1:]
    import jax

    jax.distributed.initialize(address, int(number), int(process), heartbeat_timeout_seconds=5)
    for task in tasks.split():
        run(task, int(number), process, Path(folder))


def run(task: str, number: int, process: str, folder: Path) -> None:
    """One task of one of the processes."""
    import btil

    if task in FITS:
        for name, posterior in FITS[task](folder).items():
            posterior.save(folder / f"{name}-{process}.nc")
    elif task == "few":
        data = btil.open_demonstrations(folder / "few.parquet")
        from teams import hmm_model

        posterior = btil.fit(hmm_model(), data, batch_size=1, max_iterations=9,
                             devices=number, **OPTIONS)  # fmt: skip
        posterior.save(folder / f"few-{process}.nc")
    elif task == "refused":
        print("\n".join(refused(folder)))
    elif task == "parts":
        import numpy as np

        posterior = btil.load_posterior(folder / "p.nc")
        data = btil.open_demonstrations(folder / "days")
        options = {"distributed": True, "progress": False}
        btil.analysis.decode_file(posterior, data, folder / "decoded", **options)
        scores = btil.analysis.score_file(posterior, data, **options)
        check = btil.analysis.posterior_predictive_check(
            posterior, data, num_draws=4, distributed=True
        )
        np.savez(
            folder / f"scores-{process}.npz",
            names=[one.words for one in check.statistics],
            observed=check.observed,
            log_likelihood=scores.log_likelihood,
            **scores.metrics,
        )
    elif task == "killed":
        from btil.inference import checkpoint, stochastic

        checkpoint.LEAST_SECONDS = checkpoint._TIMES_A_WRITE = 0.0
        if process == "1":
            tell, left = stochastic.tell, [6]

            def dying(*given: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return tell(*given)

            stochastic.tell = dying
        data = btil.open_demonstrations(folder / "days")
        path = folder / "run.checkpoint"
        btil.fit(model(), data, devices=number, checkpoint=path, resume=True, **BATCHES)


if __name__ == "__main__":
    main()
