"""Where requests come from: recorded traces and synthetic traffic, one kind per file."""

WORKLOADS = {
    "bailian": "workloads.bailian:Bailian",
    "block_size": "workloads.transforms:BlockSize",
    "close_loop": "workloads.close_loop:CloseLoop",
    "dynamo": "workloads.dynamo:Dynamo",
    "kv_events": "workloads.kv_events:KVEvents",
    "lengths": "workloads.lengths:Lengths",
    "link_answers": "workloads.link_answers:LinkAnswers",
    "merge": "workloads.transforms:Merge",
    "mooncake": "workloads.mooncake:Mooncake",
    "objects": "workloads.objects:Objects",
    "own": "workloads.own:Own",
    "poissonise": "workloads.transforms:Poissonise",
    "ragpulse": "workloads.ragpulse:RagPulse",
    "sample_sessions": "workloads.transforms:SampleSessions",
    "scale": "workloads.transforms:Scale",
    "shared_prefix": "workloads.shared_prefix:SharedPrefix",
    "synthetic": "workloads.synthetic:Synthetic",
    "tenants": "workloads.transforms:Tenants",
    "text_log": "workloads.text_log:TextLog",
    "tracelab": "workloads.tracelab:TraceLab",
    "weka": "workloads.weka:Weka",
    "window": "workloads.transforms:Window",
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
