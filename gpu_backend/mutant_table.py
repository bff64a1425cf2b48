"""`kvsim gpu check --mutants`: which layer finds which bug on purpose."""

from __future__ import annotations

from gpu_backend.check import check_trace
from gpu_backend.mutants import MUTANTS, Mutant

LAYERS = ("metadata", "pool", "L0", "L1 output", "L1 KV")
NUM_TOKENS = 6000  # that the decoder computes


def layers_that_find(mutant: Mutant, *, with_torch: bool, **decoder: object) -> dict[str, int]:
    """How often each layer complains; *decoder*: options of `verify_trace`."""
    trace = mutant.trace(num_blocks=60)
    counts = dict(check_trace(trace, tamper=mutant.tamper).counts)
    if with_torch:
        from gpu_backend.verify import verify_trace

        head = trace.head(NUM_TOKENS)
        counts |= verify_trace(head, tamper=mutant.tamper, **decoder).counts  # type: ignore[arg-type]
    return counts


def print_table(*, with_torch: bool) -> int:
    """Print what each layer finds; 1 if a bug is missed by a layer that should find it."""
    layers = LAYERS if with_torch else LAYERS[:3]
    print(f"{'bug':<28}" + "".join(f"{layer:>11}" for layer in layers) + "  verdict")
    missed = False
    for name, mutant in MUTANTS.items():
        counts = layers_that_find(mutant, with_torch=with_torch)
        lacking = (mutant.found_by & set(layers)) - set(counts)
        missed |= bool(lacking)
        cells = "".join(f"{counts.get(layer, 0) or '-':>11}" for layer in layers)
        print(f"{name:<28}{cells}  {'MISSED by ' + ', '.join(lacking) if lacking else 'found'}")
    if not with_torch:
        print("L1 not run: torch is not installed, or --tokens is 0")
    return int(missed)
