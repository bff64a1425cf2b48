"""Where requests come from: recorded traces and synthetic traffic, one kind per file."""

WORKLOADS = {
    "bailian": "workloads.bailian:Bailian",
    "dynamo": "workloads.dynamo:Dynamo",
    "kv_events": "workloads.kv_events:KVEvents",
    "lengths": "workloads.lengths:Lengths",
    "mooncake": "workloads.mooncake:Mooncake",
    "objects": "workloads.objects:Objects",
    "own": "workloads.own:Own",
    "ragpulse": "workloads.ragpulse:RagPulse",
    "shared_prefix": "workloads.shared_prefix:SharedPrefix",
    "text_log": "workloads.text_log:TextLog",
    "weka": "workloads.weka:Weka",
}
