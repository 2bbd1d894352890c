"""The ladder of proof for one bundle: each rung compared with the one below it.

NumPy fp64 → torch → ONNX Runtime over the same passes (a bundle for a board: NumPy → its check variant); then chunked against one-pass prefill,
speculative against plain decoding, and the acceptance that comes with it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from selfdraft.cli.ladder_passes import Trace, trace_passes
from selfdraft.cli.ladder_sparse import sparse_path
from selfdraft.cli.ladder_text import probe_prompts
from selfdraft.runtime.bundle import open_bundle
from selfdraft.runtime.generation import Generation
from selfdraft.runtime.loop import DecodeLoop
from selfdraft.runtime.request import Request
from selfdraft.runtime.result import GenerationResult
from selfdraft.runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from selfdraft.runtime.backend import Backend

OnProgress = Callable[[str, int, int], None]

FP32_TOLERANCE = 1e-4
"""Largest error of an fp32 rung, relative to the largest value of the tensor: rounding of 2^-24 in
sums of thousands of terms, through tens of layers."""
HALF_TOLERANCE = 0.03
"""The same where activations are fp16: each is rounded to 2^-11, through tens of layers."""
INT4_TOLERANCE = 0.1
"""The same with int8 arithmetic inside int4 matmuls: activations rounded to 8 bits by block."""
DRAFT_DEPTHS = (1, 2, 3, 4)
REPLY_TOKENS = 48
SAMPLED = SamplingParams(temperature=0.8, seed=7)
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rung or property: whether it held, and the figures."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Every check that ran, in order."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether all of them held."""
        return all(check.passed for check in self.checks)


def verify_bundle(
    bundle: Path,
    *,
    checkpoint: Path | None = None,
    prompts: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Run every check that applies to ``bundle``.

    ``checkpoint`` adds a comparison of the stored weights with their source. Raises
    ``BundleError`` when the bundle does not load at all.
    """
    opened = open_bundle(bundle)
    manifest = opened.manifest
    files = f"{len(manifest.files)} files match their hashes"
    stages: list[Callable[[], list[Check]]] = [
        lambda: [Check(name="files", passed=True, detail=files)]
    ]
    if checkpoint is not None:
        source = checkpoint
        stages.append(lambda: [_weights_check(bundle, source)])
    ladder = _Ladder(bundle, prompts)
    stages += [ladder.rungs, ladder.chunks, ladder.selection, ladder.speculation]
    checks: list[Check] = []
    for index, stage in enumerate(stages):
        if on_progress:
            on_progress("verify", index, len(stages))
        checks += stage()
    if on_progress:
        on_progress("verify", len(stages), len(stages))
    return VerifyReport(checks=tuple(checks))


class _Ladder:
    """The engines of one bundle, opened once."""

    def __init__(self, bundle: Path, prompts: Sequence[str] | None) -> None:
        opened = open_bundle(bundle, check_hashes=False)
        self.bundle, self.manifest = bundle, opened.manifest
        self.prompts = probe_prompts(opened, prompts)
        self.for_board = opened.manifest.target != "cpu"
        self.engine: Backend = self._open_engine()
        quantised = opened.manifest.precision.quantised
        self.tolerance = INT4_TOLERANCE if quantised else FP32_TOLERANCE
        if self.for_board:
            self.tolerance = HALF_TOLERANCE  # its int4 matmuls multiply in fp32

    def _open_engine(self) -> Any:
        """ONNX Runtime. Each backend takes its own kind of states, which the protocol cannot say."""
        if self.for_board:
            from selfdraft.cli.check_backend import CheckBackend

            return CheckBackend(self.bundle, self.manifest)
        from selfdraft.runtime.ort import OrtBackend

        return OrtBackend(self.bundle, self.manifest)

    def rungs(self) -> list[Check]:
        """Each engine's passes against those of the rung below."""
        from selfdraft.runtime.reference import ReferenceBackend

        below: Any = ReferenceBackend.from_bundle(self.bundle, check_hashes=False)
        below_trace = trace_passes(below, self.prompts[0])
        checks = []
        if self.for_board:
            detail = f"left out: {self.manifest.target} keeps states in the kernels' layouts"
            checks.append(Check(name="torch", passed=True, detail=detail))
        elif importlib.util.find_spec("torch") is None:
            detail = "torch is not installed (pip install 'selfdraft[export]'): rung left out"
            checks.append(Check(name="torch", passed=True, detail=detail))
        else:
            from selfdraft.cli.torch_backend import TorchBackend

            torch_engine: Any = TorchBackend(self.bundle, self.manifest)
            trace = trace_passes(torch_engine, self.prompts[0])
            checks.append(_compared("torch against NumPy", trace, below_trace, FP32_TOLERANCE))
            below_trace = trace
        trace = trace_passes(self.engine, self.prompts[0])
        name = "ONNX Runtime against the rung below"
        if self.for_board:
            name = "check variant on ONNX Runtime against NumPy"
        checks.append(_compared(name, trace, below_trace, self.tolerance))
        return checks

    def chunks(self) -> list[Check]:
        """Prefill in chunks against prefill in one pass."""
        prompt = max(self.prompts, key=len)
        whole = trace_passes(self.engine, prompt)
        checks = []
        for rows in (1, 7, 16):
            trace = trace_passes(self.engine, prompt, chunk_rows=rows)
            name = f"prefill in chunks of {rows} against one pass"
            checks.append(_compared(name, trace, whole, self.tolerance))
        return checks

    def selection(self) -> list[Check]:
        """What sparse steps read against what the selection asks for."""
        passed, detail = sparse_path(self.engine, self.manifest)
        return [Check(name="sparse attention reads what it selects", passed=passed, detail=detail)]

    def speculation(self) -> list[Check]:
        """Speculative tokens against plain ones, and the acceptance."""
        if not self.manifest.has_mtp:
            detail = "no MTP head: speculation is off"
            return [Check(name="speculative equals plain", passed=True, detail=detail)]
        plain = {True: self._replies(0, GREEDY), False: self._replies(0, SAMPLED)}
        checks, deepest = [], plain[True]
        for depth in DRAFT_DEPTHS:
            for greedy, sampling in ((True, GREEDY), (False, SAMPLED)):
                replies = self._replies(depth, sampling)
                checks.append(self._equality(depth, greedy, replies, plain[greedy]))
                if greedy:
                    deepest = replies
        return [*checks, _acceptance(deepest)]

    def _replies(self, drafts: int, sampling: SamplingParams) -> list[GenerationResult]:
        """Replies to every prompt; where rows may round differently, all steps are padded alike.

        int4 products may on any processor: their kernels for one row are others on many.
        """
        precision = self.manifest.precision
        pad = precision.weights == "int4" or not precision.exact_rows or self.for_board
        longest = max(len(prompt) for prompt in self.prompts)
        loop = DecodeLoop(
            self.engine,
            drafts=drafts,
            context_length=min(self.manifest.limits.context_length, longest + REPLY_TOKENS + 1),
            step_rows=max(DRAFT_DEPTHS) + 1 if pad else 1,
        )
        results = []
        for prompt in self.prompts:
            loop.reset(0)
            request = Request(prompt_ids=tuple(prompt), sampling=sampling, max_tokens=REPLY_TOKENS)
            generation = Generation(loop, {0: request})
            for _ in generation:
                pass
            results.append(generation.result)
        return results

    def _equality(
        self,
        depth: int,
        greedy: bool,
        replies: list[GenerationResult],
        plain: list[GenerationResult],
    ) -> Check:
        wrong = [
            index
            for index, (one, other) in enumerate(zip(replies, plain, strict=True))
            if one.tokens != other.tokens
        ]
        drafted = sum(sum(reply.drafted) for reply in replies)
        accepted = sum(sum(reply.accepted) for reply in replies)
        tokens = sum(len(reply.tokens) for reply in replies)
        detail = f"{tokens} tokens, {drafted - accepted} of {drafted} drafts rejected"
        if wrong:
            index = wrong[0]
            pairs = zip(replies[index].tokens, plain[index].tokens, strict=False)
            place = next((i for i, (a, b) in enumerate(pairs) if a != b), "the end")
            detail = f"prompt {index} differs at token {place}; {detail}"
        mode = "greedy" if greedy else "match"
        return Check(
            name=f"speculative equals plain, {mode}, K = {depth}", passed=not wrong, detail=detail
        )


def _acceptance(replies: list[GenerationResult]) -> Check:
    drafted = np.sum([reply.drafted for reply in replies], axis=0)
    accepted = np.sum([reply.accepted for reply in replies], axis=0)
    shares = [a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=True)]
    steps = sum(reply.steps for reply in replies)
    delivered = sum(len(reply.tokens) - 1 for reply in replies)
    detail = "by position " + ", ".join(f"{share:.3f}" for share in shares)
    detail += f"; {delivered / max(steps, 1):.2f} tokens a step at K = {len(shares)}"
    if not accepted[0]:
        # Output stays exact with any head, so this is no failure of the bundle.
        detail += "; warning: a head that never agrees is wired wrongly or not trained"
    return Check(name="acceptance", passed=True, detail=detail)


def _compared(name: str, trace: Trace, below: Trace, tolerance: float) -> Check:
    worst, place = 0.0, ""
    for key, expected in below.items():
        error, where = _worst(trace[key], expected)
        if error >= worst:
            worst, place = error, f"{key}{where}"
    detail = f"largest error {worst:.2e} of the largest value, at {place} (allowed {tolerance:.0e})"
    return Check(name=name, passed=worst <= tolerance, detail=detail)


def _worst(actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, list[int]]:
    error = np.abs(actual.astype(np.float64) - expected)
    at = np.unravel_index(int(np.argmax(error)), error.shape)
    scale = max(float(np.abs(expected).max()), 1e-30)
    value = float(error[at]) / scale
    return (value if np.isfinite(value) else float("inf")), [int(i) for i in at]


def _weights_check(bundle: Path, checkpoint: Path) -> Check:
    from selfdraft.export.weights_check import compare_weights

    differing, compared = compare_weights(bundle, checkpoint)
    detail = f"{compared} tensors equal their source"
    if differing:
        detail = f"{len(differing)} of {compared} tensors differ, the first is {differing[0]}"
    return Check(name="weights against the checkpoint", passed=not differing, detail=detail)
