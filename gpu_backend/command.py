"""What `kvsim gpu` does: parsed arguments in, exit code out."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_backend.attention import capabilities, choose_device, device_exists
from gpu_backend.check_command import check, one_thread
from sim.errors import ConfigError, KvsimError
from sim.extras import is_installed


def main(arguments: Namespace) -> int:
    """Run one action."""
    return ACTIONS[arguments.action](arguments)


# bench, calibrate


def bench(arguments: Namespace) -> int:
    """Time a backend."""
    device = choose_device(arguments.device)
    one_thread(device)
    from gpu_backend.attention import make_backend
    from gpu_backend.bench import Bench

    dtype = arguments.dtype or ("bfloat16" if device == "cuda" else "float32")
    measured = Bench(make_backend(arguments.backend, device, dtype), dtype, arguments.quick)
    if device == "cpu" and arguments.backend == "triton":
        print("note: interpreted on a CPU; these times say nothing about the kernels")
    numbers = measured.run(print)
    if arguments.json:
        write_json(arguments.json, numbers)
    return 0


def calibrate(arguments: Namespace) -> int:
    """Measure a profile and say how well it does."""
    if arguments.tables:
        from gpu_backend.tables import fits
        from sim.spec.yaml_text import dump

        print(dump(fits(arguments.tables)), end="")
        return 0
    device = choose_device(arguments.device)
    one_thread(device)
    from gpu_backend.attention import make_backend
    from gpu_backend.calibrate import Calibration
    from gpu_backend.held_out import mean_error
    from gpu_backend.plan import shape_for, step_plan

    dtype = "bfloat16" if device == "cuda" else "float32"
    shape, longest, num_blocks = shape_for(device, quick=arguments.quick)
    backend = make_backend(arguments.backend, device, dtype)
    plan = step_plan(shape, longest, num_blocks)
    calibration = Calibration(plan, backend, dtype=dtype, device=device)
    profile = calibration.profile(print)
    steps = calibration.held_out(profile)
    print(f"{'held-out step':<44} {'ms':>9} {'profile':>9} {'error':>7}")
    print(*steps, sep="\n")
    error = f"mean absolute error {mean_error(steps):.1%} on {len(steps)} held-out steps"
    print(error)
    data = asdict(profile)
    data["fits"] = {**profile.fits, "held_out": error}
    write_json(arguments.out, data)
    print(f"profile in {arguments.out}: use it as {{use: profile, gpu: {arguments.out}}}")
    return 0


def write_json(path: Path, data: Any) -> None:
    """Write *data*, all or nothing."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise KvsimError(f"{path}: cannot be written: {error.strerror or error}") from None


# backends, memory


def backends(arguments: Namespace) -> int:
    """List the backends."""
    device = arguments.device
    if device == "auto":
        device = "cuda" if is_installed("torch") and device_exists("cuda") else "cpu"
    elif device not in ("cpu", "cuda"):
        raise ConfigError(f"--device is {device!r}; it must be auto, cpu or cuda")
    print(f"on {device}:")
    for one in capabilities(device):
        if one.missing:
            print(f"{one.name:<10} not available: {one.missing}")
        else:
            print(
                f"{one.name:<10} available: {one.dtypes}; block sizes {one.block_sizes}, "
                f"heads {one.head_dims}; runs on {one.devices}"
            )
    return 0


def memory(arguments: Namespace) -> int:
    """Say how many blocks fit."""
    from sim.hardware.kv_memory import GIB, kv_memory

    found = kv_memory(
        arguments.model,
        arguments.gpu,
        tensor_parallel=arguments.tensor_parallel,
        block_size=arguments.block_size,
        utilization=arguments.utilization,
        weight_bits=arguments.weight_bits,
        kv_bytes=arguments.kv_bytes,
    )
    print(f"may be used   {found.budget / GIB:8.2f} GiB per GPU")
    print(f"weights       {found.weights / GIB:8.2f} GiB")
    print(f"activations   {found.activations / GIB:8.2f} GiB (an estimate)")
    print(f"KV cache      {found.kv / GIB:8.2f} GiB")
    size = arguments.block_size
    print(
        f"num_blocks    {found.num_blocks:,} of {size} tokens and {found.block_bytes / 2**20:.3f} "
        f"MiB: {found.num_blocks * size:,} tokens"
    )
    return 0


ACTIONS = {
    "check": check,
    "bench": bench,
    "calibrate": calibrate,
    "backends": backends,
    "memory": memory,
}
