"""Makes the `demo` package importable without putting the repository root on the path."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

if "demo" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "demo", ROOT / "demo" / "__init__.py", submodule_search_locations=[str(ROOT / "demo")]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = package
    spec.loader.exec_module(package)
