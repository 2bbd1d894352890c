"""Head re-alignment: an MTP head trained anew, or made, while its backbone stays as it is.

``align_checkpoint`` in ``export.align.run`` is the way in; docs/probe.md says when and how.
"""
