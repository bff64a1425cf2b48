"""Do our Triton kernels compile, and would they launch? For GPUs that are not here.

    python -m gpu_backend.attention.compile_check 80 90

Prints a line per kernel, type and compute capability; exit code 1 if one needs more shared memory
than a block has there. A compiled kernel is not a kernel that was run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gpu_backend.attention.triton_paged import compiled

SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}  # KiB a block may have (CUDA guide)


def main(capabilities: Sequence[int]) -> int:
    """Compile everything for *capabilities*."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    worst = 0
    for capability in capabilities:
        for name in ("write_kv", "paged_attention"):
            for dtype in ("bf16", "fp32"):
                kernel = compiled(name, capability, dtype)
                used, limit = kernel.metadata.shared, SHARED_MEMORY[capability] * 1024
                verdict = "fits" if used <= limit else "does not fit"
                worst |= used > limit
                size = len(kernel.asm["cubin"])
                print(
                    f"sm_{capability} {name} {dtype}: cubin of {size:,} bytes, "
                    f"{used:,} bytes of shared memory: {verdict}"
                )
    return int(worst)


if __name__ == "__main__":
    sys.exit(main([int(argument) for argument in sys.argv[1:]] or [80, 90]))
