"""Shared by every test: ``from support.<topic> import ...`` finds the helpers in tests/support."""

from __future__ import annotations

import sys
from pathlib import Path

SUPPORT_PARENT = str(Path(__file__).parent)
if SUPPORT_PARENT not in sys.path:
    sys.path.insert(0, SUPPORT_PARENT)
