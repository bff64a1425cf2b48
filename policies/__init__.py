"""Block managers and eviction policies: one idea per file.

`MANAGERS` and `POLICIES` give the short names used in YAML; anyone's own class is named by its
import path, `module:Class`.
"""

MANAGERS = {
    "reference": "policies.reference:ReferenceBlockManager",
    "vllm": "policies.vllm:VLLMBlockManager",
}
POLICIES = {
    "lru": "policies.lru:LRU",
}
