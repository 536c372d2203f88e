"""How long 10,000 questions to the installed vLLM take, worker start included.

python benchmarks/guard_queries.py [ARCH ...]

Every drafter family, at every block size, KV cache dtype, runner and target backend, for layers with and without
sinks and windows: all different. Prints the time of all of them, what of it was CPU time (on a machine that others
use as well, that is what can be compared), and the time of one more question to the warm server.
"""

from __future__ import annotations

import itertools
import resource
import sys
import time
from collections import Counter

from capmatrix import drafters
from capmatrix.guard import family_question
from capmatrix.guard.defaults_query import Selector
from capmatrix.guard.family_question import Server
from capmatrix.guard.questions import Question

WANTED = 10_000
BLOCKS = (16, 32, 64, 128, 256, 544)
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e5m2", "int8_per_token_head")
RUNNERS = ("", "v1")
TARGETS = ("", "TRITON_ATTN", "ROCM_ATTN")
FEATURES = ({}, {"sinks": True}, {"sliding_window": 128}, {"sliding_window": 512, "sinks": True}, {"non_causal": True})


def questions(archs: list[str]) -> list[Question]:
    """``WANTED`` different questions, evenly over architectures and families."""
    families = drafters.load(drafters.DEFAULT_DIR).values()
    combined = itertools.product(FEATURES, TARGETS, RUNNERS, KV_CACHE_DTYPES, BLOCKS, families, archs)
    found: dict[Question, None] = {}
    for feature, target, runner, kv, block, family, arch in combined:
        server = Server(runner=runner, target_backend=target, **feature)  # type: ignore[arg-type]
        found[family_question.question(family, arch, block, kv, "auto", server)] = None
        if len(found) == WANTED:
            break
    return list(found)


def main() -> None:
    """Asks and prints."""
    archs = sys.argv[1:] or ["gfx950"]
    asked = questions(archs)
    start = time.perf_counter()
    with Selector() as selector:
        answers = selector.ask(asked)
        all_s = time.perf_counter() - start
        start = time.perf_counter()
        selector.ask(asked[:1])
        one_s = time.perf_counter() - start
        versions = selector.versions()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime + time.process_time()
    chosen = Counter(answer.backend or "none" for answer in answers.values())
    print(
        f"{len(answers)} questions on {', '.join(archs)}: {all_s:.1f} s, worker start included ({cpu_s:.1f} s of CPU)"
    )
    print(f"one question to a warm server: {one_s * 1e3:.0f} ms, a fresh worker included")
    print(f"vllm {versions['vllm']}, aiter {versions['aiter'] or 'none'}; {dict(chosen.most_common())}")


if __name__ == "__main__":
    main()
