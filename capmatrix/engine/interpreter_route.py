"""Notes kernels that Triton's interpreter runs in the route."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

from . import route


def install() -> None:
    """Wrap the interpreter's grid executor once."""
    executor = interpreter.GridExecutor
    run = executor.__call__
    if getattr(run, "noted_by_capmatrix", False):
        return

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(self, *args, **kwargs)
        grid = getattr(interpreter.interpreter_builder, "grid_dim", None)
        name = getattr(self.fn, "__name__", str(self.fn))
        route.launched(name, "triton", grid=tuple(grid) if grid else None, detail="interpreted")
        return result

    noted.noted_by_capmatrix = True  # type: ignore[attr-defined]
    executor.__call__ = noted
