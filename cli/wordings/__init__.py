"""Wordings of ``selfdraft eval`` as data."""
