"""Send functions and data between the notebook and the ranks, keeping the reader's file names and lines."""
import importlib
import io
import pickle
import sys
import types

import cloudpickle


class UnpicklableError(TypeError):
    """Something cannot be sent to or from a rank; the message says what and why."""


def _reduce_code(code):
    """cloudpickle's reduction of a code object, but with the true file name, so that tracebacks find the cell."""
    constructor, args, *rest = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    args = tuple(code.co_filename if arg == "<dynamic-code>" else arg for arg in args)
    return (constructor, args, *rest)


def _importable(module):
    return sys.modules.get(module.__name__)


class _Pickler(cloudpickle.Pickler):
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: _reduce_code})

    def reducer_override(self, obj):
        if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType and obj is _importable(obj):
            return importlib.import_module, (obj.__name__,)  # torch.ops is a module of a class of its own
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and obj.is_cuda:
            return obj.cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # the notebook's process must not touch the GPU
        return super().reducer_override(obj)


def dumps(obj, what: str) -> bytes:
    """Pickle by value what a cell defines, by reference what modules define.

    Raises UnpicklableError with a sentence that begins with `what`.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
    except RecursionError:
        raise UnpicklableError(f"{what} cannot be sent between processes: it is nested too deeply.") from None
    except Exception as error:
        raise UnpicklableError(
            f"{what} cannot be sent between processes ({type(error).__name__}: {error}). "
            "Numbers, strings, lists, dicts, arrays, tensors, functions and modules can be sent; "
            "open files, locks, generators and process groups cannot: make them inside the function."
        ) from None
    return buffer.getvalue()


loads = pickle.loads
