"""Public traces by name: where they come from, under which licence, and what they must contain.

A path `dataset:NAME` is found under $KVSIM_DATA, in the cache folder, or fetched into it. The
SHA-256 is that of the content, however the file is compressed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RAW = "https://raw.githubusercontent.com"
LFS = "https://media.githubusercontent.com/media"

MOONCAKE = f"{RAW}/kvcache-ai/Mooncake"
RAGPULSE = f"{RAW}/flashserve/RAGPulse/99a62769a91d5ebd17a2d4ddbbc88c1d16edc0e8/data"
BAILIAN = (
    f"{LFS}/alibaba-edu/qwen-bailian-usagetraces-anon/0b4273a1d8a83935b9d9356e78f95c31f2ac64cf"
)
BURSTGPT = f"{LFS}/HPMLL/BurstGPT/5d93d820d9b6bee4e26914df003e5713538164ae/data"


@dataclass(frozen=True, slots=True)
class File:
    """A file under $KVSIM_DATA, named without what compresses it; *url*: "" if there is none."""

    path: str
    sha256: str
    url: str = ""

    @property
    def name(self) -> str:
        """How it is called in the cache folder, with the suffix of a compressed source."""
        suffix = Path(self.url).suffix
        return Path(self.path).name + (suffix if suffix in (".gz", ".xz", ".zst") else "")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A trace and the files that must lie beside it; *use*: the workload that reads it."""

    use: str
    licence: str
    source: str
    files: tuple[File, ...]


def _ragpulse(name: str, sha256: str) -> File:
    return File(f"ragpulse/{name}.jsonl", sha256, f"{RAGPULSE}/{name}.jsonl")


DATASETS: dict[str, Dataset] = {
    "mooncake_conversation": Dataset(
        "mooncake",
        "Apache-2.0",
        "kvcache-ai/Mooncake, FAST25-release/traces",
        (
            File(
                "mooncake/conversation_trace.jsonl",
                "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
                f"{MOONCAKE}/a2a4b18ac537fd798d50e6e9f57031ce86419a37"
                "/FAST25-release/traces/conversation_trace.jsonl",
            ),
        ),
    ),
    "mooncake_synthetic": Dataset(
        "mooncake",
        "Apache-2.0",
        "kvcache-ai/Mooncake, FAST25-release/traces",
        (
            File(
                "mooncake/synthetic_trace.jsonl",
                "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
                f"{MOONCAKE}/3cca71daccf2a7afb8fe3f0295358f70e3a69fdb"
                "/FAST25-release/traces/synthetic_trace.jsonl",
            ),
        ),
    ),
    "weka_claude_code": Dataset(
        "weka",
        "Apache-2.0",
        "callanjfox/kv-cache-tester, traces/trace_NNNN.json with NNNN % 10 < 7, one a line",
        (
            File(
                "weka_claude_code/sessions_496.jsonl",
                "9da5cbd7d41c654abd406fdcc38723862bc2292272a6e0392f76e10c2d201b23",
            ),
        ),
    ),
    "ragpulse": Dataset(
        "ragpulse",
        "MIT",
        "flashserve/RAGPulse, data",
        (
            _ragpulse(
                "0_trace", "cd371571bef3320907147f8901729e37f412aafb067ec8eb153e2828e1801e65"
            ),
            _ragpulse(
                "1_sys_prompt", "e7bf9bc66493629fa279d67ffb9d6a44e4ec3a7ac60549f5c679319c54564f6d"
            ),
            _ragpulse(
                "2_passages", "8575941cab2eb1cae25e589b7fab3ccb6affc3809e4156b1dc6db40d9e65b891"
            ),
            _ragpulse(
                "3_history", "fdd9b1ca962c2b4d0f48785497007e20aa961442eb93cb1afbe3f23c383ae467"
            ),
            _ragpulse(
                "4_user_input", "5adeff33a44850f5a1c0892aaaf7000114d7ac24821d4238175abb92b77dd12d"
            ),
            _ragpulse(
                "5_web_search", "5e4cba4e2e449eb1a26c1c94aa57a59204f29c8ed0395da03cf0f43b7d75891c"
            ),
        ),
    ),
    "azure_2023_conv": Dataset(
        "lengths",
        "CC-BY-4.0",
        "Azure/AzurePublicDataset, data",
        (
            File(
                "azure_2023/AzureLLMInferenceTrace_conv.csv",
                "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
                f"{RAW}/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08"
                "/data/AzureLLMInferenceTrace_conv.csv",
            ),
        ),
    ),
    "burstgpt_1": Dataset(
        "lengths",
        "CC-BY-4.0",
        "HPMLL/BurstGPT, data",
        (
            File(
                "burstgpt/BurstGPT_1.csv",
                "4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122",
                f"{BURSTGPT}/BurstGPT_1.csv",
            ),
        ),
    ),
    "bailian_coder": Dataset(
        "bailian",
        "Apache-2.0",
        "alibaba-edu/qwen-bailian-usagetraces-anon",
        (
            File(
                "bailian/qwen_coder_blksz_16.jsonl",
                "3d74974cebb7bccb69b1ca6ea210a44d9a3033443c0271ed015327284dea1aff",
                f"{BAILIAN}/qwen_coder_blksz_16.jsonl",
            ),
        ),
    ),
    "bailian_thinking": Dataset(
        "bailian",
        "Apache-2.0",
        "alibaba-edu/qwen-bailian-usagetraces-anon",
        (
            File(
                "bailian/qwen_thinking_blksz_16.jsonl",
                "41ac36d9d1b54d084eeb6b05e9d142ba9d02f8bf79cfc9fff418d8ab7cdee906",
                f"{BAILIAN}/qwen_thinking_blksz_16.jsonl",
            ),
        ),
    ),
    "lmcache_miniswe": Dataset(
        "text_log",
        "Apache-2.0",
        "LMCache/lmcache-agent-trace, miniswe/*.jsonl, one after the other",
        (
            File(
                "lmcache_agent/miniswe_20sessions.jsonl",
                "c0d564226852c3cfebd83ef5621eceba16b8a0fda059e106695f7f43ccf0f305",
            ),
        ),
    ),
    "dynamo_pi": Dataset(
        "dynamo",
        "Apache-2.0",
        "wxsms/dynamo, lib/bench/testdata",
        (
            File(
                "dynamo/pi_request_trace.jsonl",
                "de9c7c952d0a05cacd79248780af17cd2e92e1220a7c566dac5b2e8d18c2fb3b",
                f"{RAW}/wxsms/dynamo/cd97ffbb9798beaefab63408bbdea3da637e2ce8"
                "/lib/bench/testdata/pi_request_trace.jsonl.gz",
            ),
        ),
    ),
    "arc_oltp": Dataset(
        "objects",
        "free; cite the ARC paper (FAST'03)",
        "moka-rs/cache-trace, arc",
        (
            File(
                "object_cache/arc_OLTP.lis",
                "01fc36ce7c40a4741e30bd1f999402295fbea829f00f3591ad6732feb078808f",
                f"{RAW}/moka-rs/cache-trace/2ec2b62e27cdc26af32fd63b925857edeb784879"
                "/arc/OLTP.lis.zst",
            ),
        ),
    ),
    "cache2k_web07": Dataset(
        "objects",
        "CC-BY-4.0",
        "ben-manes/caffeine, simulator resources",
        (
            File(
                "object_cache/cache2k_web07.trace",
                "6959eddd318157e012862ba6c87f32d5a878c6c08dddbf999a42d2d378294ab1",
            ),
        ),
    ),
    "cache2k_orm_busy": Dataset(
        "objects",
        "CC-BY-4.0",
        "ben-manes/caffeine, simulator resources",
        (
            File(
                "object_cache/cache2k_orm-busy.trace",
                "016768842d9dc66a8633242bb619b2c695927766e31e5ce382a6e3ce8e98ab26",
            ),
        ),
    ),
}
