"""Where requests come from: recorded traces and synthetic traffic, one kind per file."""

WORKLOADS = {
    "mooncake": "workloads.mooncake:Mooncake",
    "shared_prefix": "workloads.shared_prefix:SharedPrefix",
    "weka": "workloads.weka:Weka",
}
