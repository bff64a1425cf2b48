"""libcachesim (C++): LRU over one flat stream of blocks, without prompts, pins or a clock."""

from __future__ import annotations

from benchmarks.drivers import Job, drive
from benchmarks.measure import Outcome, repeated, timed


def run(job: Job) -> Outcome:
    """The hits of its LRU on the stream."""
    import libcachesim as lcs

    parameters = lcs.ReaderInitParam(ignore_obj_size=True)
    reader = lcs.TraceReader(
        job["path"],
        trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE,
        reader_init_params=parameters,
    )
    num_blocks = reader.get_num_of_req()
    # Its hash table is sized beforehand; twice the blocks is what suits it best.
    hashpower = max(10, job["num_blocks"].bit_length())

    def once() -> tuple[float, float]:
        reader.reset()
        cache = lcs.LRU(cache_size=job["num_blocks"], hashpower=hashpower)
        seconds, (miss_ratio, _) = timed(lambda: cache.process_trace(reader))
        return seconds, miss_ratio

    seconds, miss_ratio = repeated(once, job["repetitions"])
    num_hits = round((1 - miss_ratio) * num_blocks)
    work = f"{num_hits:,} of {num_blocks:,} blocks hit in {job['num_blocks']:,}"
    return Outcome(job["num_requests"], num_blocks, seconds, work)


if __name__ == "__main__":
    drive("libcachesim", "LRU, flat", run)
