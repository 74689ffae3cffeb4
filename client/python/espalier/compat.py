"""Names of other packages for this one's modules, so that programs run without a changed line.

    import espalier.compat

    espalier.compat.install_flexflow()
    from flexflow.core import *
    from flexflow.keras.models import Sequential

or, for a program as it stands: python -m espalier.compat program.py -b 64 -e 3
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
import types
from collections.abc import Sequence

from espalier.errors import FailedPrecondition, InvalidArgument

# Modules of FlexFlow -> ours. What lies beneath a name of _FOLDERS is found beneath the first place that has it.
_MODULES = {
    "flexflow.core": "espalier.core",
    "flexflow.core.flexflow_cffi": "espalier.core",
    "flexflow.type": "espalier.core.enums",
    "flexflow.keras": "espalier.keras.flexflow",
    "flexflow.torch": "espalier.torch",
    "flexflow.torch.model": "espalier.torch.model",
    "flexflow.torch.fx": "espalier.torch.fx",
    "flexflow.pytorch": "espalier.torch",
    "flexflow.pytorch.model": "espalier.torch.model",
    "flexflow.onnx": "espalier.onnx",
    "flexflow.onnx.model": "espalier.onnx.model",
}
_FOLDERS = {"flexflow.keras": ("espalier.keras.flexflow", "espalier.keras")}


def _target(name: str) -> str | None:
    if name in _MODULES:
        return _MODULES[name]
    for folder, places in _FOLDERS.items():
        if name.startswith(f"{folder}."):
            rest = name[len(folder) :]
            return next((place + rest for place in places if importlib.util.find_spec(place + rest)), None)
    return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds FlexFlow's modules, and loads ours in their place."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of FlexFlow; None for other names."""
        if fullname.partition(".")[0] != "flexflow":
            return None
        if fullname != "flexflow" and _target(fullname) is None:
            raise ModuleNotFoundError(
                f"{fullname} has no counterpart here; there are {', '.join(_MODULES)}", name=fullname
            )
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        """Puts our module in the place of the one that is being loaded."""
        name = module.__name__
        if name == "flexflow":
            module.__doc__ = "Espalier under FlexFlow's names (espalier.compat)."
            module.__dict__["__getattr__"] = _submodule
            return
        target = _target(name)
        assert target is not None
        sys.modules[name] = importlib.import_module(target)


def _submodule(name: str) -> types.ModuleType:
    """flexflow.core after `import flexflow` alone."""
    if _target(f"flexflow.{name}") is None:
        raise AttributeError(f"module 'flexflow' has no attribute {name!r}")
    return importlib.import_module(f"flexflow.{name}")


_FINDER = _Finder()


def install_flexflow() -> None:
    """Lets `import flexflow.core`, flexflow.keras, flexflow.torch and flexflow.onnx find this package's modules.

    FailedPrecondition if the real FlexFlow was imported before.
    """
    loaded = sys.modules.get("flexflow")
    if loaded is not None and getattr(loaded.__spec__, "loader", None) is not _FINDER:
        raise FailedPrecondition("another flexflow was imported already; call install_flexflow() before its imports")
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _main(argv: Sequence[str]) -> None:
    if not argv:
        raise InvalidArgument("usage: python -m espalier.compat PROGRAM.py [ARGUMENT...]")
    install_flexflow()
    sys.argv[:] = argv
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    _main(sys.argv[1:])
