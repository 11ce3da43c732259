"""Work spread over several devices, by JAX's own means: a mesh, and arrays sharded over it.

Coordinate ascent splits the lanes of episodes, samplers their chains; tables are copied to every
device. The devices may belong to several processes (`jax.distributed`): each of them then calls
`btil.fit` with the same arguments and gets the same answer.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from btil.arguments import check_values
from btil.messages.layout import LaneIndex

# The name of the mesh's axis.
AXIS = "devices"
SPLIT = PartitionSpec(AXIS)
COPIED = PartitionSpec()
# Lanes, or chains, are the second axis.
SPLIT_SECOND = PartitionSpec(None, AXIS)


def make_mesh(devices: int | None) -> Mesh | None:
    """A mesh of the first `devices` devices of all processes; None for one, or for None.

    Raises:
        ValueError: If there are fewer, or a process would be left without one.
    """
    if devices is None:
        return None
    check_values({"devices": devices})
    found = jax.devices()
    if devices > len(found):
        raise ValueError(
            f"devices must be at most {len(found)}, the number that JAX finds "
            f"({found[0].platform}), got {devices}; on a CPU more can be had by "
            f'jax.config.update("jax_num_cpu_devices", {devices}) before JAX is first used'
        )
    if jax.process_count() > 1 and devices != len(found):
        raise ValueError(
            f"with {jax.process_count()} processes devices must be all {len(found)}, got {devices}"
        )
    return Mesh(np.array(found[:devices]), (AXIS,)) if devices > 1 else None


def own_mesh(devices: int | None) -> Mesh | None:
    """A mesh of this process's own among so many devices; None for one, or for None.

    Raises:
        ValueError: As `make_mesh`.
    """
    mesh = make_mesh(devices)
    if mesh is None or jax.process_count() == 1:
        return mesh
    own = jax.local_devices()
    return Mesh(np.array(own), (AXIS,)) if len(own) > 1 else None


def provide_devices(devices: int) -> None:
    """Let the CPU count as so many devices, where that is still open: for commands.

    Accelerators stay as many as they are.

    Raises:
        ValueError: If it is no number of devices.
    """
    check_values({"devices": devices})
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError:  # JAX is in use already; `make_mesh` says how many there are
        return


def place(tree: Any, mesh: Mesh | None, spec: PartitionSpec = COPIED) -> Any:
    """A tree of arrays laid over a mesh; as it is where there is none.

    Every process holds the whole arrays and gives its devices their part.
    """
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, spec)

    def lay(leaf: Any) -> Array:
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
            return leaf
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(lay(jax.random.key_data(leaf)))
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])

    return jax.tree.map(lay, tree)


def lane_specs(index: LaneIndex) -> LaneIndex:
    """How the fields of an index lie on devices: lanes are split, rows of tables are everywhere."""
    specs = jax.tree.map(lambda _: SPLIT_SECOND, index)
    return specs._replace(unseen=None if index.unseen is None else COPIED)


def place_lanes(steps: tuple[LaneIndex, ...], mesh: Mesh | None) -> tuple[LaneIndex, ...]:
    """Where all agents' steps look, laid over a mesh as `split_lanes` wants it."""
    return tuple(
        place(index._replace(unseen=None), mesh, SPLIT_SECOND)._replace(
            unseen=place(index.unseen, mesh)
        )
        for index in steps
    )


def split_lanes(
    function: Callable[..., tuple[Any, ...]], mesh: Mesh | None
) -> Callable[..., tuple[Any, ...]]:
    """A function of tables and of lanes that each device applies to its own lanes.

    Args:
        function: (policy, transition, initial, `LaneIndex`) -> sums over the lanes, and something
            of each lane. With a log evidence of the steps as a fifth argument it also gives
            something of each step; of both the lanes are the last axis.
        mesh: The devices.

    Returns:
        The same function; the sums are added up over devices.
    """
    if mesh is None:
        return function

    def of_own_lanes(*arguments: Any) -> tuple[Any, ...]:
        sums, *by_lane = function(*arguments)
        return jax.lax.psum(sums, AXIS), *by_lane

    def run(*arguments: Any) -> tuple[Any, ...]:
        tables, index, evidence = arguments[:3], arguments[3], arguments[4:]
        of_steps = (PartitionSpec(None, None, AXIS),) * len(evidence)
        return jax.shard_map(
            of_own_lanes,
            mesh=mesh,
            in_specs=(*(COPIED for _ in tables), lane_specs(index), *of_steps),
            out_specs=(COPIED, SPLIT, *of_steps),
            # A scan would have to be told that what it starts from differs between devices later.
            check_vma=False,
        )(*arguments)

    return run


def split_chains(
    function: Callable[..., Any], mesh: Mesh | None, out_specs: Any
) -> Callable[..., Any]:
    """A function whose first argument has chains on its leading axis; devices run their own.

    Args:
        function: (chains, whatever is the same for all) -> something of the chains.
        mesh: The devices; their number divides that of the chains.
        out_specs: Where the axis of the chains is in what the function gives.
    """
    if mesh is None:
        return function

    def run(chains: Any, *common: Any) -> Any:
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(SPLIT, *(COPIED for _ in common)),
            out_specs=out_specs,
            check_vma=False,
        )(chains, *common)

    return run


def check_chains(num_chains: int, mesh: Mesh | None) -> None:
    """Refuse a number of chains that devices cannot share evenly."""
    if num_chains % size_of(mesh):
        raise ValueError(
            f"num_chains must be a multiple of devices={size_of(mesh)}, got {num_chains}"
        )


def place_episodes(tree: Any, mesh: Mesh | None) -> Any:
    """A tree of arrays with episodes on their first axis, split over a mesh.

    Episodes of zeros are added behind, so that devices have equally many.
    """
    if mesh is None:
        return tree

    def padded(leaf: Any) -> np.ndarray:
        values = np.asarray(leaf)
        more = -len(values) % mesh.size
        return np.pad(values, [(0, more)] + [(0, 0)] * (values.ndim - 1))

    return place(jax.tree.map(padded, tree), mesh, SPLIT)


def gather(tree: Any, mesh: Mesh | None) -> Any:
    """A tree of which every process has all parts; as it is where there is one process."""
    if mesh is None or jax.process_count() == 1:
        return tree
    return jax.jit(lambda same: same, out_shardings=NamedSharding(mesh, COPIED))(tree)


def size_of(mesh: Mesh | None) -> int:
    """Number of devices."""
    return 1 if mesh is None else mesh.size
