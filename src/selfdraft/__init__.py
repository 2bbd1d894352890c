"""selfdraft: exact self-speculative decoding with a multi-token-prediction head."""

from selfdraft.errors import ToolkitError

__version__ = "0.1.0"

__all__ = ["ToolkitError", "__version__"]
