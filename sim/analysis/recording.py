"""The schedule of a run, recorded at its block manager: who held how much memory, and when."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sim.analysis.optimum import Moment
from sim.cache import NO_HIT, Allocation, BlockManager, Hit
from sim.keys import BlockKeys
from sim.request import Request


class Recording:
    """Everything that *manager* is asked for from now on, as a schedule for `sim.analysis.optimum`.

        recording = Recording(manager)
        Engine(manager).run(workload)
        Optimum(recording.chains, recording.schedule).num_hits(manager.num_blocks)

    *num_hits*: blocks that the run itself hit, at first admissions and at later ones.
    """

    def __init__(self, manager: BlockManager) -> None:
        self.chains: list[BlockKeys] = []
        self.schedule: list[Moment] = []
        self.num_hits = 0
        self._manager = manager
        self._numbers: dict[int | str, int] = {}
        self._num_blocks: dict[int | str, int] = {}  # what each request holds now
        names = ["allocate_slots", "cache_blocks", "free"]
        if type(manager).grow is not BlockManager.grow:  # the contract's own calls allocate_slots
            names.append("grow")
        for name in names:
            # On this object only: its class and other managers stay as they are.
            setattr(manager, name, _Wrapped(getattr(manager, name), getattr(self, f"_{name}")))

    def _allocate_slots(
        self, given: Allocation | None, request: Request, _: int, hit: Hit = NO_HIT, **__: Any
    ) -> None:
        if given is None:
            return
        name = request.request_id
        num_hittable = None
        if name not in self._num_blocks:
            num_hits = hit.num_tokens // self._manager.block_size
            self._num_blocks[name] = num_hits
            self.num_hits += num_hits
            skips = request.skip_reading_prefix_cache or not self._manager.enable_caching
            num_hittable = 0 if skips else (request.num_tokens - 1) // self._manager.block_size
        self._num_blocks[name] += given.num_new_blocks
        self._note(request, num_hittable)

    def _grow(self, _: None, requests: Collection[Request], **__: Any) -> None:
        for request in requests:
            self._num_blocks[request.request_id] += 1
            self._note(request)

    def _cache_blocks(self, _: None, request: Request, __: int) -> None:
        if request.request_id in self._num_blocks:
            self._note(request)

    def _free(self, _: None, request: Request, **__: Any) -> None:
        if self._num_blocks.pop(request.request_id, None) is not None:
            self.schedule.append(Moment(self._numbers[request.request_id], 0, 0))

    def _note(self, request: Request, num_hittable: int | None = None) -> None:
        name = request.request_id
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.chains)
            self.chains.append(request.keys)
        num_stored = self._manager.num_stored_blocks(name) or 0
        moment = Moment(number, num_stored, self._num_blocks[name], num_hittable)
        self.schedule.append(moment)


class _Wrapped:
    """A method that reports its result and its arguments after each call."""

    def __init__(self, method: Any, report: Any) -> None:
        self._method = method
        self._report = report

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self._method(*arguments, **options)
        self._report(result, *arguments, **options)
        return result
