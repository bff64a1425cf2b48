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
    "synthetic": "workloads.synthetic:Synthetic",
    "text_log": "workloads.text_log:TextLog",
    "weka": "workloads.weka:Weka",
}

ARRIVALS = {
    "bursty": "workloads.arrivals:Bursty",
    "constant": "workloads.arrivals:Constant",
    "diurnal": "workloads.arrivals:Diurnal",
    "gamma": "workloads.arrivals:Gamma",
    "poisson": "workloads.arrivals:Poisson",
    "servegen": "workloads.servegen:ServeGen",
    "users": "workloads.arrivals:Users",
    "weibull": "workloads.arrivals:Weibull",
}

PROMPTS = {
    "agents": "workloads.agents:Agents",
    "chat": "workloads.chat:Chat",
    "documents": "workloads.retrieval:Documents",
    "few_shot": "workloads.retrieval:FewShot",
    "images": "workloads.retrieval:Images",
    "rag": "workloads.retrieval:Rag",
    "sampling": "workloads.search:ParallelSampling",
    "shared_prompts": "workloads.shared_prompts:SharedPrompts",
    "tree_search": "workloads.search:TreeSearch",
}

LENGTHS = {
    "empirical": "workloads.length_models:Empirical",
    "fixed": "workloads.length_models:Fixed",
    "geometric": "workloads.length_models:Geometric",
    "lognormal": "workloads.length_models:Lognormal",
    "servegen": "workloads.servegen:ServeGenLengths",
}
