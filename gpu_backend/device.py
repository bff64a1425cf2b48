"""Everything that needs a device, in one go and within minutes: for a GPU that is lent for once.

    python -m gpu_backend.device --out FOLDER [--toy] [--device cuda] [--minutes 6]

Correctness of every backend in float32 (16-bit kernels against the reference on the same bytes),
bugs on purpose, KV writes and attention against the device's limits, whole steps over new x hit
tokens and rows x context of an 8B-shaped decoder, a profile with held-out steps, and memory against
its prediction. Each part is written when it is done; one that fails or finds no time says so.
`--toy` runs all of it on a CPU, in seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from gpu_backend.attention import BACKENDS, capabilities, choose_device, make_backend
from gpu_backend.attention.batch import Backend, Batch
from gpu_backend.attention.reference import Reference
from gpu_backend.bench import Bench
from gpu_backend.cache import PagedKVCache
from gpu_backend.calibrate import Calibration
from gpu_backend.command import write_json
from gpu_backend.held_out import mean_error
from gpu_backend.metadata import Row, build_metadata
from gpu_backend.model import Shape
from gpu_backend.mutant_table import layers_that_find
from gpu_backend.mutants import MUTANTS
from gpu_backend.plan import model_profile, shape_for, step_plan
from gpu_backend.step_timer import StepTimer
from gpu_backend.toy import toy_engine, toy_requests
from gpu_backend.tracing import traced_run
from gpu_backend.verify import verify_trace
from sim.errors import KvsimError

Json = dict[str, Any]


class Session:
    """The parts, in order; *toy* makes them small."""

    def __init__(self, device: str, toy: bool) -> None:
        self.device, self.toy = device, toy
        self.dtype = "bfloat16" if device == "cuda" else "float32"
        self.names = [one.name for one in capabilities(device) if not one.missing]
        # Our kernels are the fastest that are always there; interpreted they are for checks only.
        self.fast = "triton" if device == "cuda" and "triton" in self.names else "reference"

    def parts(self) -> dict[str, Callable[[], Json]]:
        """Name and computation of each part."""
        found: dict[str, Callable[[], Json]] = {"environment": self.environment}
        for name in self.names:
            found[f"correct_{name}"] = lambda name=name: self.correct(name)  # type: ignore[misc]
        found["mutants"] = self.mutants
        for name in self.names:
            if self.device == "cpu" and name == "triton":
                continue  # interpreted: its times mean nothing
            found[f"bench_{name}"] = lambda name=name: self.bench(name)  # type: ignore[misc]
        found |= {"profile": self.profile, "steps": self.steps, "memory": self.memory}
        return found

    def environment(self) -> Json:
        """Where this runs, and which backends there are."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
        return {
            "device": name,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "backends": {one.name: one.missing or "available" for one in capabilities(self.device)},
            "toy": self.toy,
        }

    def correct(self, name: str) -> Json:
        """A whole run in float32 where the backend has it; and one step on the same bytes."""
        dtype = self.type_of(name)
        backend = make_backend(name, self.device, dtype)
        found: Json = {"one_step_error": one_step_error(backend, dtype, self.device)}
        requests = toy_requests(8 if self.toy else 60, 64 if self.toy else 320)
        trace = traced_run(toy_engine(num_blocks=60), requests)
        # flex makes a mask of tokens x slots for every layer and step.
        trace = trace.head(150 if self.toy else 1500 if name == "flex" else 20_000)
        shape = Shape(head_dim=64) if self.device == "cuda" else None  # what every kernel has
        verdict = verify_trace(trace, backend=backend, dtype=dtype, device=self.device, shape=shape)
        found |= {
            "dtype": dtype,
            "tokens": verdict.num_tokens,
            "worst_output": verdict.worst_output if dtype == "float32" else "not compared",
            "worst_kv": verdict.worst_kv,
            "findings": [str(finding) for finding in verdict.findings],
        }
        return found

    def type_of(self, name: str) -> str:
        """float32 if backend *name* has it."""
        (one,) = (one for one in capabilities(self.device) if one.name == name)
        return "float32" if "float32" in one.dtypes.split() else "bfloat16"

    def mutants(self) -> Json:
        """Which layers find which bug; the decoder runs on the device."""
        names = list(MUTANTS)[:1] if self.toy else list(MUTANTS)
        decoder = {"device": self.device, "dtype": "float32"}
        found: Json = {}
        for name in names:
            mutant = MUTANTS[name]
            counts = layers_that_find(mutant, with_torch=True, **decoder)
            found[name] = {"found": counts, "missed_by": sorted(mutant.found_by - set(counts))}
        return found

    def bench(self, name: str) -> Json:
        """KV writes and attention."""
        backend = make_backend(name, self.device, self.dtype)
        return Bench(backend, self.dtype, self.toy or name == "flex").run(print)

    def profile(self) -> Json:
        """A profile from parts, and the held-out steps."""
        shape, longest, num_blocks = shape_for(self.device, quick=self.toy)
        backend = make_backend(self.fast, self.device, self.dtype)
        plan = step_plan(shape, longest, num_blocks)
        calibration = Calibration(plan, backend, dtype=self.dtype, device=self.device)
        profile = calibration.profile(print)
        steps = calibration.held_out(profile)
        print(*steps, sep="\n")
        rows = [asdict(step) | {"error": step.error} for step in steps]
        return {"profile": asdict(profile), "held_out": rows, "mean_error": mean_error(steps)}

    def steps(self) -> Json:
        """Whole steps, launched one kernel at a time: new x hit tokens, rows x context."""
        shape, num_blocks = self.whole_shape()
        backend = make_backend(self.fast, self.device, self.dtype)
        timer = StepTimer(
            shape,
            backend,
            num_blocks=num_blocks,
            dtype=getattr(torch, self.dtype),
            device=self.device,
        )
        news, hits = ((16, 64), (0, 64)) if self.toy else ((16, 256, 2048, 8192), (0, 2048, 16_384))
        rows, contexts = ((1, 4), (32, 64)) if self.toy else ((1, 8, 64), (1024, 8192))
        prefills = [(n, p, timer.seconds([(n, p)])) for n in news for p in hits]
        decodes = [(r, c, timer.seconds([(1, c - 1)] * r)) for r in rows for c in contexts]
        return {"shape": repr(shape), "new_hit_seconds": prefills, "rows_context_seconds": decodes}

    def whole_shape(self) -> tuple[Shape, int]:
        """All 32 layers of an 8B model, or a toy; and its blocks."""
        shape, _, num_blocks = shape_for(self.device, quick=self.toy)
        if self.device == "cpu":
            return shape, num_blocks
        layers = {"num_layers": 32}
        return Shape(**{**{n: getattr(shape, n) for n in Shape.__slots__}, **layers}), 35_000

    def memory(self) -> Json:
        """Bytes of weights and KV, predicted and allocated; the CPU's allocator does not tell."""
        shape, num_blocks = self.whole_shape()
        size = getattr(torch, self.dtype).itemsize
        model = model_profile(shape)
        kv = model.kv_bytes_per_token(size) * 16 * num_blocks
        weights = size * model.num_params  # the decoder has two embeddings and no head
        if self.device != "cuda":
            return {"predicted": weights + kv, "allocated": "not known on a CPU"}
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        timer = StepTimer(
            shape,
            Reference(self.device),
            num_blocks=num_blocks,
            dtype=getattr(torch, self.dtype),
            device=self.device,
        )
        allocated = torch.cuda.memory_allocated() - before
        del timer
        return {"predicted": weights + kv, "allocated": allocated}


def one_step_error(backend: Backend, dtype: str, device: str) -> float:
    """The largest difference from the reference in float32, on the same keys and values."""
    kind = getattr(torch, dtype)
    rows = [
        Row(c, n, list(range(1 + 20 * i, 21 + 20 * i)))
        for i, (c, n) in enumerate([(0, 200), (255, 1), (100, 57), (16, 1)])
    ]
    batch = Batch.of(build_metadata(rows, 16), device)
    caches = [
        PagedKVCache(1, 90, 16, 2, 64, dtype=t, device=device, poison=1.0)
        for t in (kind, torch.float32)
    ]
    kv = torch.randn(2, 90, 16, 2, 64, device=device).to(kind)
    for cache in caches:
        cache.keys[0].copy_(kv[0])
        cache.values[0].copy_(kv[1])
    queries = torch.randn(batch.num_actual_tokens, 8, 64, device=device).to(kind)
    with torch.inference_mode():
        found = backend.attend(caches[0], 0, queries, batch)
        right = Reference(device).attend(caches[1], 0, queries.float(), batch)
    return float((found.float() - right).abs().max() / right.abs().max())


def main(argv: Sequence[str] | None = None) -> int:
    """Run every part; 1 if one failed, found something, or had no time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for a file per part")
    parser.add_argument("--toy", action="store_true", help="toy sizes, in seconds")
    parser.add_argument("--device", default="auto", help=f"of {', '.join(BACKENDS)} (auto)")
    parser.add_argument("--minutes", type=float, default=6.0, help="no part begins after (6)")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    session = Session(choose_device(given.device), given.toy)
    start, states = monotonic(), dict[str, str]()
    for name, part in session.parts().items():
        begun = monotonic() - start
        if begun > given.minutes * 60:
            states[name] = "skipped: no time was left"
        else:
            states[name] = run_part(part, given.out / f"{name}.json")
        print(f"[{monotonic() - start:6.1f} s] {name}: {states[name]}", flush=True)
    write_json(given.out / "summary.json", states)
    return int(any(state != "done" for state in states.values()))


def run_part(part: Callable[[], Json], path: Path) -> str:
    """Run one part and keep what it found; how it went, in a word."""
    begun = monotonic()
    try:
        found = part()
    except (KvsimError, RuntimeError, ValueError, TypeError, ImportError, OSError) as error:
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    write_json(path, found | {"seconds": monotonic() - begun})
    if found.get("findings") or any(
        isinstance(value, dict) and value.get("missed_by") for value in found.values()
    ):
        return "wrong: see its file"
    return "done"


if __name__ == "__main__":
    sys.exit(main())
