"""A bundle opened for use: backend, tokenizer, chat template, decode loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from selfdraft.errors import BundleError, ConfigError
from selfdraft.runtime.adaptive.measure import adaptive_drafts, joint_drafts
from selfdraft.runtime.adaptive.policy import BatchPolicy, DraftPolicy
from selfdraft.runtime.bundle import Bundle, open_bundle
from selfdraft.runtime.chat_template import ChatTemplate, SpecialTexts
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.loop_options import MAX_DRAFTS
from selfdraft.runtime.row_check import PROBE_ROWS, one_row_rounds_like_two
from selfdraft.runtime.telemetry.meter import Telemetry
from selfdraft.runtime.tokenizer import Tokenizer
from selfdraft.strict import closest_hint

if TYPE_CHECKING:
    from selfdraft.runtime.backend import Backend

BACKENDS = ("auto", "ort", "tensorrt", "reference")
"""``auto``: TensorRT for a bundle exported for a board, else ONNX Runtime."""
AUTO: Literal["auto"] = "auto"
Drafts = int | Literal["auto"]
NEVER_PAYS = (
    "no drafts: they cost more here than they could bring (--drafts 1 makes them all the same)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a bundle is run."""

    backend: str = "auto"
    threads: int | None = None
    drafts: Drafts | None = None
    """``auto``: as many as pay, step by step."""
    context: int | None = None
    chunk: int | None = None
    audit_every: int | None = None
    """Compare every Nth decode step with dense attention."""
    prefill: str = "dense"
    bit_exact: bool = False
    """Pad every step to the rows of the deepest speculative one."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError(
                f"unknown backend {self.backend!r}{closest_hint(self.backend, BACKENDS)}",
                hint=f"choose one of: {', '.join(BACKENDS)}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An open bundle. Make loops from it; each owns its caches."""

    bundle: Bundle
    tokenizer: Tokenizer
    backend: Backend
    options: EngineOptions

    @property
    def threads(self) -> int | None:
        """Threads of the engine; ``None`` where it does not say."""
        count = getattr(self.backend, "threads", None)
        return count if isinstance(count, int) else None

    @property
    def default_drafts(self) -> int:
        """Fixed drafts of a step where the caller does not say."""
        given = self.options.drafts
        return given if isinstance(given, int) else int(self.bundle.manifest.has_mtp)

    def loop(
        self,
        *,
        batch: int = 1,
        drafts: int | None = None,
        context: int | None = None,
        forced_acceptance: Sequence[float] | None = None,
        backend: Backend | None = None,
        timed: bool = False,
        telemetry: Telemetry | None = None,
    ) -> DecodeLoop:
        """A loop of ``batch`` slots; what is ``None`` comes from the options, then from the bundle.

        ``timed``: plain steps keep their one row even where it rounds otherwise than several.
        """
        chosen = self._drafts(batch) if drafts is None else drafts
        return DecodeLoop(
            backend or self.backend,
            batch=batch,
            drafts=chosen,
            context_length=self.options.context if context is None else context,
            prefill_rows=self.options.chunk,
            prefill_attention=self.options.prefill,
            step_rows=1 if timed and not self.options.bit_exact else self._step_rows(chosen),
            forced_acceptance=forced_acceptance,
            audit_every=self.options.audit_every,
            tokenizer=self.tokenizer,
            telemetry=telemetry,
        )

    def _drafts(self, batch: int) -> int | DraftPolicy | BatchPolicy:
        """What the options ask for; ``auto`` measures what steps cost."""
        if self.options.drafts != AUTO:
            return self.default_drafts
        rows = self._step_rows(0)
        if batch > 1:
            return joint_drafts(self.backend, batch=batch, least_rows=rows) or 0
        return adaptive_drafts(self.backend, least_rows=rows) or 0

    def never_pays(self, loop: DecodeLoop) -> bool:
        """Whether ``loop`` decodes plainly because its drafts could not pay."""
        return self.options.drafts == AUTO and self.bundle.manifest.has_mtp and not loop.drafts

    def _step_rows(self, drafts: int | DraftPolicy | BatchPolicy) -> int:
        """Rows that a step is padded to, so that drafts change no token."""
        if self.options.bit_exact:
            return MAX_DRAFTS + 1
        manifest = self.bundle.manifest
        plain = drafts == 0 or not isinstance(drafts, int)
        rounds = plain and manifest.has_mtp and manifest.precision.weights == "int4"
        return PROBE_ROWS if rounds and not one_row_rounds_like_two(self.backend) else 1

    def chat_template(self) -> ChatTemplate:
        """The bundle's template; ``ConfigError`` where it has none."""
        return chat_template_of(self.bundle, self.tokenizer)


def drafts_choice(text: str | None) -> Drafts:
    """What ``--drafts`` says (checked by the option); ``auto`` where it is left out."""
    return int(text) if text and text != AUTO else AUTO


def chat_template_of(bundle: Bundle, tokenizer: Tokenizer) -> ChatTemplate:
    """The template of an opened bundle; ``ConfigError`` where it has none."""
    text = bundle.manifest.text
    if text.chat_template is None:
        raise ConfigError(
            f"{bundle.path} has no chat template",
            hint="give the prompt as the model should see it: selfdraft generate --raw",
        )
    path = bundle.file(text.chat_template)
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(
            f"{path} cannot be read: {error}", hint="export the bundle again"
        ) from None
    eos_id = text.eos_ids[0] if text.eos_ids else None
    special = SpecialTexts(
        bos_token=_spelling(tokenizer, text.bos_id), eos_token=_spelling(tokenizer, eos_id)
    )
    return ChatTemplate(source, special=special)


def _spelling(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_of(token_id) or ""


def open_session(path: Path, options: EngineOptions) -> Session:
    """Check and open the bundle at ``path``. Raises ``BundleError``, ``DeviceError``."""
    bundle = open_bundle(path, engine_only=options.backend in ("auto", "tensorrt"))
    _check_options(bundle, options)
    tokenizer = Tokenizer.from_file(bundle.file(bundle.manifest.text.tokenizer))
    backend = _open_backend(bundle, options)
    # An engine may be built for less than the bundle holds.
    bundle = replace(bundle, manifest=backend.manifest)
    return Session(bundle=bundle, tokenizer=tokenizer, backend=backend, options=options)


def _check_options(bundle: Bundle, options: EngineOptions) -> None:
    """Refuse what the bundle does not have, before anything is loaded, by the options' own names."""
    most = bundle.manifest.limits.context_length
    for name, value in (("--context", options.context), ("--chunk", options.chunk)):
        if value is not None and value > most:
            raise ConfigError(
                f"{name} is {value}, the bundle holds {most} tokens",
                hint=f"choose up to {most}, or export with a larger --context",
            )
    if isinstance(options.drafts, int) and options.drafts and not bundle.manifest.has_mtp:
        raise ConfigError(
            f"--drafts is {options.drafts}, this bundle has no MTP head",
            hint="leave --drafts out, or export a checkpoint that has one",
        )


def _open_backend(bundle: Bundle, options: EngineOptions) -> Backend:
    # Each backend takes its own kind of states, which the protocol cannot say.
    backend: Any
    on_board = bundle.manifest.target != "cpu"
    name = options.backend
    if name == "auto":
        name = "tensorrt" if on_board else "ort"
    _check_backend(bundle, name, on_board=on_board)
    if name == "reference":
        from selfdraft.runtime.reference import ReferenceBackend

        backend = ReferenceBackend.from_bundle(bundle.path, check_hashes=False)
    elif name == "tensorrt":
        from selfdraft.cli.board import board_of
        from selfdraft.jetson.probe import probe
        from selfdraft.runtime.trt.backend import TensorRtBackend

        backend = TensorRtBackend(bundle.path, bundle.manifest, board=board_of(probe()))
        _check_context(options.context, bundle, backend.manifest.limits.context_length)
    else:
        from selfdraft.runtime.ort import OrtBackend

        backend = OrtBackend(bundle.path, bundle.manifest, threads=options.threads)
    checked: Backend = backend
    return checked


def _check_context(context: int | None, bundle: Bundle, most: int) -> None:
    """Refuse more than the engine has, where the bundle has it."""
    if context is not None and most < context <= bundle.manifest.limits.context_length:
        raise ConfigError(
            f"context is {context}, the engine was built for {most} tokens",
            hint=f"choose up to {most}, or build it again: "
            f"selfdraft build {bundle.path} --context {context}",
        )


def _check_backend(bundle: Bundle, name: str, *, on_board: bool) -> None:
    """Refuse a bundle that was exported for another engine."""
    target = bundle.manifest.target
    if name == "ort" and on_board:
        raise ConfigError(
            f"{bundle.path} was exported for {target}, whose graphs only TensorRT runs",
            hint="run it on the board, or export it with --target cpu",
        )
    if name == "tensorrt" and not on_board:
        raise ConfigError(
            f"{bundle.path} was exported for the target {target}, not for a board",
            hint="export it with --target orin-jp6 or orin-jp7, or leave --backend out",
        )
