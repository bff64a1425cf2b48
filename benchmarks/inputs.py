"""What is measured: recorded traces where they are, synthetic toys with --quick."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from policies.vllm import VLLMBlockManager
from sim.request import Request
from sim.workload import Workload
from workloads.mooncake import Mooncake
from workloads.shared_prefix import SharedPrefix
from workloads.weka import Weka

CONVERSATION = Path("mooncake", "conversation_trace.jsonl.xz")
SESSIONS = Path("weka_claude_code", "sessions_496.jsonl.xz")

BLOCK_SIZES = (16, 64, 512)
NO_LIMIT = 2**40  # blocks


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asked for.

    *data*: the folder of traces. *quick*: toy sizes and synthetic requests only. *repetitions*: of
    what takes less than about a second; the rest runs once. *peers_python*: the interpreter that
    has the peers installed.
    """

    data: Path | None
    quick: bool
    repetitions: int
    peers_python: str

    def conversation(self, block_size: int) -> Workload:
        """Mooncake's conversation trace, or toy traffic."""
        if self.quick:
            return SharedPrefix(rate=20.0, num_requests=300, num_prefixes=20, block_size=block_size)
        return Mooncake(self.trace(CONVERSATION), block_size)

    def sessions(self, session_gap: float) -> Workload:
        """WEKA's agent sessions, 67 million block references, or toy traffic."""
        if self.quick:
            return SharedPrefix(num_requests=300, num_prefixes=20, block_size=64)
        return Weka(self.trace(SESSIONS), session_gap=session_gap)

    def trace(self, name: Path) -> Path:
        """Where a trace is."""
        return (self.data or Path()) / name

    def has(self, name: Path) -> bool:
        """Whether what a section needs is there."""
        return self.quick or self.trace(name).is_file()


def footprint(workload: Workload) -> int:
    """How many different full blocks the prompts have: what an unlimited cache holds at the end."""
    manager = VLLMBlockManager(NO_LIMIT, workload.block_size)
    for request in workload:
        serve_whole_blocks(manager, request)
    return manager.num_cached_blocks


def serve_whole_blocks(manager: VLLMBlockManager, request: Request) -> int:
    """Serve the prompt's full blocks and nothing else, and say how many were hit.

    With one token known behind them the last one may be hit too, so nothing is cached twice.
    """
    num_tokens = request.num_prompt_tokens // manager.block_size * manager.block_size
    if not num_tokens:
        return 0
    request.num_prompt_tokens, request.num_output_tokens = num_tokens, 1
    hit = manager.get_computed_blocks(request)
    manager.allocate_slots(request, num_tokens - hit.num_tokens, hit, now=request.arrival_time)
    manager.free(request, now=request.arrival_time)
    return hit.num_tokens // manager.block_size


def tenth(workload: Workload) -> int:
    """A pool of a tenth of the footprint, rounded up, in blocks, and the null block."""
    return -(-footprint(workload) // 10) + 1
