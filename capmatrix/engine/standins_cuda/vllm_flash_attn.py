"""Stands in for ``vllm.vllm_flash_attn``, whose functions are compiled: each says so when it is called."""

CAPMATRIX_STAND_IN = True
FA2_AVAILABLE = False
FA3_AVAILABLE = False
#: A package, so that its parts can be named; it has none.
__path__: list = []


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise ImportError(f"vllm.vllm_flash_attn.{name} is compiled, and this copy of vLLM has only Python files")

    missing.__name__ = name
    return missing


def fa_version_unsupported_reason(fa_version, device=None):
    """Why no version of flash attention can be used."""
    return "this copy of vLLM has only Python files"


def is_fa_version_supported(fa_version, device=None):
    """None is."""
    return False
