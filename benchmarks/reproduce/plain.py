"""What the reproductions share: how they start and end, attention in float64, and calls of vLLM's and AITER's kernels.

Each script prints figures, then a line ``REPRODUCED name: ...`` or ``not reproduced name: ...``, and ends with 0 or 1.
2 is wrong use, and 3 that something failed before there was a result, with a traceback. ``REPRODUCED`` takes both: the
case in question is off, and a control beside it is right, so that a kernel that works not at all reproduces nothing.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

#: Relative error up to which a control is right: float32 products may be TF32's on a GPU.
RIGHT = 0.02

#: Relative error from which a case is off; the findings are at 0.3 and more.
OFF = 0.1

_NEEDS = """
Where the kernels run: on the GPU that torch sees (ROCm's or CUDA's), unless TRITON_INTERPRET=1 is set; else on the CPU
by Triton's interpreter. Needs torch, triton and an importable vllm 0.32, compiled or not. A machine that has torch and
Triton alone can have vLLM's Python files with stand-ins for its compiled modules, as `capmatrix bundle` packs them, on
its PYTHONPATH: neither those nor anything of capmatrix takes part in what is computed here.

Exit status: 0 reproduced, 1 not reproduced, 2 wrong use, 3 could not run.
"""


def run(main: Callable[[argparse.Namespace], bool], *, aiter: str = "") -> None:
    """Read the command line, run ``main`` and end the process; ``aiter`` says what an AITER checkout is for."""
    doc = inspect.getdoc(inspect.getmodule(main)) or ""
    parser = argparse.ArgumentParser(
        description=doc, epilog=_NEEDS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda: also ROCm's GPUs; cpu: Triton's interpreter")
    if aiter:
        parser.add_argument("aiter", nargs="?", metavar="AITER", help=aiter)
    options = parser.parse_args()
    try:
        options.device = _device(parser, options.device)
        sys.exit(int(not main(options)))
    except Exception as error:
        traceback.print_exc()
        print(f"could not run {_name()}: {type(error).__name__}: {error}")
        sys.exit(3)


def verdict(case: float, control: float, text: str, *, off: float = OFF, right: float = RIGHT) -> bool:
    """Print the one line that counts: is the ``case`` off while its ``control`` is right? Both are relative errors.

    NaN is off, and no control.
    """
    reproduced = not case < off and control < right
    print(f"{'REPRODUCED' if reproduced else 'not reproduced'} {_name()}: {text}")
    if not control < right:
        print(f"  the control is off itself ({control:.2g}, at most {right}): this says nothing about the finding")
    return reproduced


def worst(errors: Iterable[float]) -> float:
    """The largest of ``errors``; NaN is larger than any number."""
    return max(errors, key=lambda error: (error != error, error))


def _name() -> str:
    return Path(sys.argv[0]).stem


def _device(parser: argparse.ArgumentParser, asked: str | None) -> str:
    """The device to use; for the CPU Triton's kernels are interpreted, and vLLM is told that a CPU can run them."""
    interpret = os.environ.get("TRITON_INTERPRET") == "1"
    if asked == "cuda" and interpret:
        parser.error("--device cuda, and TRITON_INTERPRET=1 is set")
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda, and torch sees no GPU")
    if asked == "cpu" or interpret or not torch.cuda.is_available():
        _interpreted()
        print(f"Triton's interpreter, torch {torch.__version__}")
        return "cpu"
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    return "cuda"


def _interpreted() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    # vLLM disables Triton where it finds no driver, unless no GPU is meant to be seen yet.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import triton.backends

    class Compiler:
        """Compiles for nothing."""

        @staticmethod
        def supports_target(target: object) -> bool:
            """Whether this compiler is for ``target``."""
            return False

    class Driver:
        """Drives nothing."""

        @staticmethod
        def is_active() -> bool:
            """Whether this driver's hardware is here."""
            return True

    triton.backends.backends["cpu"] = triton.backends.Backend(Compiler, Driver)


def without_native_paged_attention() -> None:
    """Have vLLM take its Triton kernel for decode, as it does at block 64 and more on ROCm."""
    import torch

    if torch.version.hip is not None:
        import vllm.platforms.rocm as rocm
    else:  # no ROCm here: all that is asked of the module is this
        rocm = types.ModuleType("vllm.platforms.rocm")
        sys.modules["vllm.platforms.rocm"] = rocm
    rocm.use_rocm_custom_paged_attention = lambda *args: False  # type: ignore[attr-defined]


def use_aiter(path: str | None) -> None:
    """Have AITER's kernel importable, from the checkout at ``path`` or as installed; else say what to give and end.

    Without ROCm an installed AITER does not come through its own set-up.
    """
    if path and not (Path(path) / "aiter" / "ops" / "triton").is_dir():
        _refuse(f"{path} is no AITER checkout: it has no aiter/ops/triton")
    if path:
        _aiter_from(Path(path))
    try:
        import aiter.ops.triton._triton_kernels.attention.unified_attention  # noqa: F401
    except Exception as error:
        whose = f"the one at {path}" if path else "the installed one, if any"
        _refuse(f"AITER's kernel cannot be imported from {whose} ({type(error).__name__}: {error})")


def _refuse(why: str) -> NoReturn:
    print(f"{_name()}: {why}: give the path of an AITER checkout, as in python {_name()}.py AITER", file=sys.stderr)
    sys.exit(2)


def _aiter_from(root: Path) -> None:
    """AITER's Triton kernels from a checkout, without its packages' set-up, which asks for ROCm."""
    import torch

    for name in ("aiter", "aiter.ops", "aiter.ops.triton"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    kinds = types.ModuleType("aiter.ops.triton.utils.types")
    kinds.e4m3_dtype = torch.float8_e4m3fn  # type: ignore[attr-defined]
    sys.modules[kinds.__name__] = kinds


def attention(
    q: Any, k: Any, v: Any, *, cap: float | None = None, causal: bool = True, left: int | None = None,
    right: int | None = None,
) -> Any:  # fmt: skip
    """Attention in float64: q (new, heads, size), k and v (length, heads, size), up to ``left`` back, ``right`` on."""
    import torch

    q, k, v = q.double(), k.double(), v.double()
    logits = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if cap:
        logits = cap * torch.tanh(logits / cap)
    position = torch.arange(k.shape[0] - q.shape[0], k.shape[0], device=q.device)[:, None]
    ahead = torch.arange(k.shape[0], device=q.device)[None] - position
    hidden = (ahead > 0) if causal else torch.zeros_like(ahead, dtype=torch.bool)
    if left is not None:
        hidden = hidden | (ahead < -left)
    if right is not None:
        hidden = hidden | (ahead > right)
    weight = torch.softmax(logits.masked_fill(hidden, float("-inf")), -1)
    return torch.einsum("hqk,khd->qhd", weight, v)


def error(got: Any, want: Any) -> float:
    """Relative norm of the error."""
    return float((got.double() - want).norm() / want.norm())


def unified(q: Any, k: Any, v: Any, *, causal: bool, window: int) -> Any:
    """vLLM's ``unified_attention`` over one request, K and V in blocks of 16; ``window`` tokens, 0 for none."""
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    length, heads, size = k.shape
    blocks = -(-length // 16)
    caches = []
    for x in (k, v):
        cache = torch.zeros(blocks * 16, heads, size, dtype=x.dtype, device=x.device)
        cache[:length] = x
        caches.append(cache.view(blocks, 16, heads, size))
    out = torch.full_like(q, float("nan"))
    unified_attention(
        q, *caches, out,
        cu_seqlens_q=torch.tensor([0, q.shape[0]], dtype=torch.int32, device=q.device),
        max_seqlen_q=q.shape[0],
        seqused_k=torch.tensor([length], dtype=torch.int32, device=q.device),
        max_seqlen_k=length,
        softmax_scale=size**-0.5,
        causal=causal,
        window_size=(window - 1, 0) if window else (-1, -1),
        block_table=torch.arange(blocks, dtype=torch.int32, device=q.device)[None],
        softcap=0,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    return out


def rocm(
    q: Any, k: Any, v: Any, caches: tuple[Any, Any], *, length: int, table: list[int] | None = None, window: int = 0,
    causal: bool = True, kv_cache_dtype: str = "auto",
) -> Any:  # fmt: skip
    """vLLM's ``chunked_prefill_paged_decode`` for one request: q, k, v of its new tokens, ``caches`` for its context.

    ``length`` counts context and new tokens; ``table`` names the blocks in order, all of the caches unless said.
    """
    import torch
    from vllm.v1.attention.ops.chunked_prefill_paged_decode import chunked_prefill_paged_decode

    without_native_paged_attention()
    out, one, new = torch.full_like(q, float("nan")), torch.ones(1, device=q.device), q.shape[0]
    chunked_prefill_paged_decode(
        q, k, v, out, kv_cache_dtype, *caches,
        torch.tensor([table or range(caches[0].shape[0])], dtype=torch.int32, device=q.device),
        torch.tensor([0, new], dtype=torch.int32, device=q.device),
        torch.tensor([length], dtype=torch.int32, device=q.device),
        length, new, one, one, sliding_window=window, sm_scale=q.shape[-1] ** -0.5, causal=causal,
    )  # fmt: skip
    return out


def rocm_caches(k: Any, v: Any, block: int) -> tuple[Any, Any]:
    """K and V (length, heads, size) in blocks as ROCM_ATTN has them, (.., size / 4, block, 4) and (.., size, block)."""
    import torch

    length, heads, size = k.shape
    blocks = -(-length // block)
    key_cache = torch.zeros(blocks, heads, size // 4, block, 4, dtype=k.dtype, device=k.device)
    value_cache = torch.zeros(blocks, heads, size, block, dtype=v.dtype, device=v.device)
    for i in range(length):
        key_cache[i // block, :, :, i % block] = k[i].view(heads, size // 4, 4)
        value_cache[i // block, :, :, i % block] = v[i]
    return key_cache, value_cache


def aiter_unified(q: Any, k: Any, v: Any, *, block: int, tile: int, behind: float = 0.0, window: int = 0) -> Any:
    """AITER's ``kernel_unified_attention_2d`` over one request; ``behind`` is what its last block holds after its end.

    q (new, heads, size), k and v (length, heads, size) of one type; an FP8 one has scales of 1 and a bfloat16 output.
    """
    import torch
    from aiter.ops.triton._triton_kernels.attention.unified_attention import kernel_unified_attention_2d

    (new, heads, size), length = q.shape, k.shape[0]
    blocks, device = -(-length // block), q.device
    caches = []
    for x in (k, v):
        cache = torch.full((blocks * block, heads, size), behind, device=device).to(x.dtype)
        cache[:length] = x
        caches.append(cache.view(blocks, block, heads, size))
    fp8 = q.element_size() == 1
    out = torch.full(q.shape, float("nan"), dtype=torch.bfloat16 if fp8 else q.dtype, device=device)
    one = torch.ones(1, device=device) if fp8 else None
    strides = {f"stride_{n}_cache_{i}": c.stride(i) for n, c in zip("kv", caches, strict=True) for i in range(4)}
    kernel_unified_attention_2d[heads, new // 16 + 1](
        output_ptr=out, query_ptr=q, key_cache_ptr=caches[0], value_cache_ptr=caches[1], sink_ptr=None,
        block_tables_ptr=torch.arange(blocks, dtype=torch.int32, device=device)[None],
        seq_lens_ptr=torch.tensor([length], dtype=torch.int32, device=device),
        alibi_slopes_ptr=None, qq_bias_ptr=None, scale=size**-0.5, q_descale_ptr=one, k_descale_ptr=one,
        v_descale_ptr=one, out_scale_ptr=None, softcap=0.0, num_query_heads=heads, num_queries_per_kv=1,
        block_table_stride=blocks, query_stride_0=q.stride(0), query_stride_1=q.stride(1),
        output_stride_0=out.stride(0), output_stride_1=out.stride(1), qq_bias_stride_0=0, BLOCK_SIZE=block,
        TILE_SIZE=tile, HEAD_SIZE=size, HEAD_SIZE_PADDED=size, USE_ALIBI_SLOPES=False, USE_QQ_BIAS=False,
        USE_SOFTCAP=False, USE_SINKS=False, SLIDING_WINDOW=window, **strides,
        query_start_len_ptr=torch.tensor([0, new], dtype=torch.int32, device=device),
        BLOCK_Q=16, num_seqs=1, BLOCK_M=16, ALL_DECODE=new == 1,
    )  # fmt: skip
    return out
