"""Block managers and eviction policies: one idea per file.

`MANAGERS` and `POLICIES` give the short names used in YAML; anyone's own class is named by its
import path, `module:Class`.
"""

MANAGERS = {
    "reference": "policies.reference:ReferenceBlockManager",
    "vllm": "policies.vllm:VLLMBlockManager",
    "radix": "policies.radix:RadixBlockManager",
    "uncached": "policies.uncached:UncachedBlockManager",
}
POLICIES = {
    "lru": "policies.lru:LRU",
    "fifo": "policies.fifo:FIFO",
    "clock": "policies.clock:Clock",
    "sieve": "policies.sieve:Sieve",
    "s3fifo": "policies.s3fifo:S3FIFO",
    "slru": "policies.slru:SLRU",
    "slru_sglang": "policies.slru_sglang:ProtectedLRU",
    "two_q": "policies.two_q:TwoQ",
    "arc": "policies.arc:ARC",
    "lirs": "policies.lirs:LIRS",
    "wtinylfu": "policies.wtinylfu:WTinyLFU",
    "lecar": "policies.lecar:LeCaR",
    "hyperbolic": "policies.hyperbolic:Hyperbolic",
    "random": "policies.random_choice:Random",
    "belady": "policies.belady:Belady",
    "mru": "policies.mru:MRU",
    "filo": "policies.filo:FILO",
    "lfu": "policies.lfu:LFU",
    "lfuda": "policies.lfuda:LFUDA",
    "lru_k": "policies.lru_k:LRUK",
    "gdsf": "policies.gdsf:GDSF",
    "pgdsf": "policies.pgdsf:PGDSF",
    "length_aware": "policies.length_aware:LengthAware",
    "freq_cost": "policies.freq_cost:FreqCost",
    "priority": "policies.priority:Priority",
    "ttl": "policies.ttl:TTL",
    "tlru": "policies.tlru:TLRU",
    "continuum": "policies.continuum:Continuum",
    "kvflow": "policies.kvflow:KVFlow",
    "workload_aware": "policies.workload_aware:WorkloadAware",
    "queue_lookahead": "policies.queue_lookahead:QueueLookahead",
    "rlt": "policies.rlt:RLT",
    "noisy_oracle": "policies.noisy_oracle:NoisyOracle",
    "learned": "policies.learned:Learned",
}
