"""The HTTP server of ``selfdraft serve``: OpenAI's API over one bundle."""
