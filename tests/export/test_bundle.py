from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoints import write_checkpoint
from support.refusals import refused

import selfdraft
from selfdraft.errors import ResourceError
from selfdraft.export import bundle as bundle_module
from selfdraft.export.bundle import export_bundle, plan_export
from selfdraft.export.options import ExportOptions
from selfdraft.manifest import load_manifest

SCRIPT = Path(__file__).parent.parent / "support" / "killed_export.py"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", "mimo")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A place for a bundle in a folder of its own, so that leftovers show."""
    return tmp_path / "out" / "bundle"


def left_beside(output: Path) -> list[str]:
    return sorted(os.listdir(output.parent)) if output.parent.exists() else []


@pytest.mark.parametrize("family", ["mimo", "qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("mtp", ["mimo", "qwen", None])
@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_every_family_becomes_a_bundle_whose_manifest_loads(
    tmp_path, output, fake_graphs, family, mtp, weights
) -> None:
    source = write_checkpoint(tmp_path / "c", family, mtp=mtp, dtype="BF16", shards=2)
    report = export_bundle(source, output, ExportOptions(weights=weights))
    manifest = load_manifest(output)
    assert manifest == report.manifest
    assert manifest.model.family == family and manifest.has_mtp == (mtp is not None)
    assert list(manifest.graphs) == (["backbone", "mtp"] if mtp else ["backbone"])
    assert manifest.precision.weights == weights
    assert manifest.precision.int4_block == (32 if weights == "int4" else None)
    assert ("no MTP head: speculation is off" in manifest.notes) == (mtp is None)
    assert left_beside(output) == ["bundle"]


def test_manifest_lists_every_file_with_size_and_hash(checkpoint, output, fake_graphs) -> None:
    (checkpoint / "LICENSE").write_text("terms")
    export_bundle(checkpoint, output, ExportOptions())
    manifest = load_manifest(output)
    names = {path.name for path in output.iterdir()}
    assert names == set(manifest.files) | {"manifest.json"}
    assert names >= {"LICENSE", "MODEL_CARD.md", "tokenizer.json", "chat_template.jinja"}
    for name, spec in manifest.files.items():
        content = (output / name).read_bytes()
        assert (spec.bytes, spec.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert manifest.selfdraft_version == selfdraft.__version__
    assert manifest.source.license == "apache-2.0"
    assert manifest.source.model_card == "MODEL_CARD.md"


def test_graph_builder_gets_the_places_of_the_written_file(checkpoint, output, fake_graphs) -> None:
    seen: dict[str, Any] = {}
    build = fake_graphs.build_graphs

    def spy(spec, stored, **options):
        seen.update(options, spec=spec, stored=stored)
        seen["data"] = (options["directory"] / "weights.safetensors").read_bytes()
        return build(spec, stored, **options)

    fake_graphs.build_graphs = spy
    export_bundle(checkpoint, output, ExportOptions(candidates=4000))
    tensors = safetensors.numpy.load_file(output / "weights.safetensors")
    for name, place in seen["stored"].items():
        raw = seen["data"][place.offset : place.offset + place.length]
        np.testing.assert_array_equal(
            np.frombuffer(raw, dtype=np.float32).reshape(place.shape), tensors[name]
        )
    assert seen["candidates"] == 288  # the vocabulary
    assert seen["target"] == "cpu"
    assert seen["spec"] == load_manifest(output).model


def test_draft_vocabulary_is_trimmed_and_keeps_special_tokens(
    checkpoint, output, fake_graphs, tmp_path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello hello")
    options = ExportOptions(draft_vocab=12, draft_vocab_text=text)
    report = export_bundle(checkpoint, output, options)
    ids = safetensors.numpy.load_file(output / "weights.safetensors")["mtp.draft_ids"]
    assert len(ids) == 12 and set(ids) >= {256, 257, 258, 259, 260}
    mtp = report.manifest.model.mtp
    assert mtp is not None and mtp.draft_vocab_size == 12
    assert report.bytes_by_part["draft_head"] == 12 * 64 * 4 + 12 * 8


def test_draft_vocabulary_without_a_head_is_refused(tmp_path, output, fake_graphs) -> None:
    source = write_checkpoint(tmp_path / "c", "llama", mtp=None)
    with refused("draft_vocab 12", "no MTP head"):
        export_bundle(source, output, ExportOptions(draft_vocab=12))


def test_report_tells_bytes_share_of_the_head_time_and_memory(
    checkpoint, output, fake_graphs
) -> None:
    report = export_bundle(checkpoint, output, ExportOptions())
    assert report.output == output
    assert report.mtp_bytes == report.bytes_by_part["mtp"] > 0
    assert report.mtp_share == report.mtp_bytes / sum(report.bytes_by_part.values())
    assert report.bytes_by_part["embedding"] == 288 * 64 * 4
    assert report.peak_rss_bytes > 1 << 20 and report.seconds > 0


def test_progress_passes_through_the_stages_to_their_ends(checkpoint, output, fake_graphs) -> None:
    seen: list[tuple[str, int, int]] = []
    export_bundle(checkpoint, output, ExportOptions(), lambda *step: seen.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == ["embedding", "weights", "graphs", "hashes"]
    for stage in stages:
        assert [(d, t) for s, d, t in seen if s == stage][-1][0] == seen_total(seen, stage)


def seen_total(seen: list[tuple[str, int, int]], stage: str) -> int:
    totals = {total for name, _, total in seen if name == stage}
    assert len(totals) == 1
    return totals.pop()


@pytest.mark.parametrize(
    ("asked", "maximum", "expected"),
    [(None, 512, 512), (None, 100_000, 32_768), (100, 512, 100), (512, 512, 512)],
)
def test_context_is_what_was_asked_for_or_the_configs_up_to_32k(
    tmp_path, asked, maximum, expected
) -> None:
    source = write_checkpoint(tmp_path / "c", "qwen3", context=maximum)
    plan = plan_export(source, ExportOptions(context=asked))
    assert plan.limits.context_length == expected


def test_context_above_the_configs_is_refused_with_the_limit(checkpoint) -> None:
    with refused("context 513", "512"):
        plan_export(checkpoint, ExportOptions(context=513))


def test_wrong_checkpoint_is_refused_before_anything_is_written(tmp_path, output) -> None:
    source = write_checkpoint(tmp_path / "c", drop=("model.norm.weight",))
    with refused("model.norm.weight"):
        export_bundle(source, output, ExportOptions())
    assert not output.parent.exists()


def test_bad_weight_found_while_writing_leaves_nothing(tmp_path, output, fake_graphs) -> None:
    bad = {"model.norm.weight": np.full(64, np.nan, dtype=np.float32)}
    source = write_checkpoint(tmp_path / "c", extra=bad)
    with refused("model.norm.weight", "NaN"):
        export_bundle(source, output, ExportOptions())
    assert left_beside(output) == []


@pytest.mark.parametrize("stage", ["embedding", "weights", "graphs", "hashes"])
@pytest.mark.parametrize("kind", ["error", "interrupt", "termination"])
def test_stop_in_any_stage_leaves_nothing(checkpoint, output, fake_graphs, stage, kind) -> None:
    def stop(now: str, done: int, total: int) -> None:
        if now != stage:
            return
        if kind == "termination":
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        raise RuntimeError if kind == "error" else KeyboardInterrupt

    expected = {
        "error": RuntimeError,
        "interrupt": KeyboardInterrupt,
        "termination": SystemExit,
    }
    with pytest.raises(expected[kind]):
        export_bundle(checkpoint, output, ExportOptions(), stop)
    assert left_beside(output) == []


def test_failing_graph_builder_leaves_nothing(checkpoint, output, fake_graphs) -> None:
    def fail(*args, **options):
        raise RuntimeError("tracing failed")

    fake_graphs.build_graphs = fail
    with pytest.raises(RuntimeError, match="tracing failed"):
        export_bundle(checkpoint, output, ExportOptions())
    assert left_beside(output) == []


def test_disk_space_is_checked_before_anything_is_written(checkpoint, output, monkeypatch) -> None:
    plan = plan_export(checkpoint, ExportOptions())
    free = plan.num_bytes - 1
    monkeypatch.setattr(
        "selfdraft.export.publish.shutil.disk_usage",
        lambda path: type("Usage", (), {"free": free})(),
    )
    with refused("GiB free", error=ResourceError):
        export_bundle(checkpoint, output, ExportOptions())
    assert not output.parent.exists()


def test_needed_space_covers_what_is_written(checkpoint, output, fake_graphs) -> None:
    plan = plan_export(checkpoint, ExportOptions())
    export_bundle(checkpoint, output, ExportOptions())
    written = sum(path.stat().st_size for path in output.iterdir())
    assert written <= plan.num_bytes
    assert plan.num_bytes - bundle_module.GRAPH_BYTES <= written


def test_disk_that_fills_up_while_writing_is_reported_and_cleaned(
    checkpoint, output, monkeypatch
) -> None:
    opened = Path.open

    class FullFile:
        def __init__(self, file) -> None:
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            self.file.close()

        def __getattr__(self, name: str):
            return getattr(self.file, name)

        def write(self, data) -> int:
            if self.file.tell() > 4096:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(data)

    def open_file(path: Path, mode: str = "r", *args, **options):
        file = opened(path, mode, *args, **options)
        return FullFile(file) if mode == "wb" else file

    monkeypatch.setattr(Path, "open", open_file)
    with refused("disk is full", str(output), error=ResourceError):
        export_bundle(checkpoint, output, ExportOptions())
    assert left_beside(output) == []


def test_output_below_a_file_cannot_be_written(checkpoint, tmp_path, fake_graphs) -> None:
    (tmp_path / "file").write_text("text")
    with refused(str(tmp_path / "file"), error=ResourceError):
        export_bundle(checkpoint, tmp_path / "file" / "bundle", ExportOptions())


def test_existing_bundle_is_kept_unless_overwrite_is_given(checkpoint, output, fake_graphs) -> None:
    export_bundle(checkpoint, output, ExportOptions(name="first"))
    with refused(str(output), "exists"):
        export_bundle(checkpoint, output, ExportOptions(name="second"))
    assert load_manifest(output).source.name == "first"
    export_bundle(checkpoint, output, ExportOptions(name="second", overwrite=True))
    assert load_manifest(output).source.name == "second"
    assert left_beside(output) == ["bundle"]


def test_folder_that_is_no_bundle_is_never_replaced(checkpoint, tmp_path, fake_graphs) -> None:
    for overwrite in (False, True):
        with refused(str(checkpoint), "did not write it"):
            export_bundle(checkpoint, checkpoint, ExportOptions(overwrite=overwrite))
    assert (checkpoint / "config.json").exists()


def test_checkpoint_inside_the_old_bundle_is_not_deleted(checkpoint, output, fake_graphs) -> None:
    export_bundle(checkpoint, output, ExportOptions())
    inner = output / "checkpoint"
    write_checkpoint(inner, "mimo")
    with refused(str(inner), str(output)):
        export_bundle(inner, output, ExportOptions(overwrite=True))
    assert (inner / "config.json").exists()


def test_output_given_as_a_link_replaces_what_it_points_to(
    checkpoint, output, tmp_path, fake_graphs
) -> None:
    export_bundle(checkpoint, output, ExportOptions(name="first"))
    link = tmp_path / "link"
    link.symlink_to(output)
    export_bundle(checkpoint, link, ExportOptions(name="second", overwrite=True))
    assert link.is_symlink() and load_manifest(output).source.name == "second"


def run_killed(checkpoint: Path, output: Path, *flags: str) -> list[dict[str, Any]]:
    output.parent.mkdir()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(checkpoint), str(output), *flags],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) > 50 and [r["killed"] for r in rounds].count(False) == 1
    return rounds


def test_kill_at_any_step_leaves_nothing_that_loads_and_is_not_complete(tmp_path, output) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", "llama", mtp=None)
    rounds = run_killed(checkpoint, output)
    for found in rounds:
        assert found["loadable"] == found["complete"], found
    assert not any(found["loadable"] for found in rounds[: len(rounds) * 3 // 4])
    assert rounds[-1]["loadable"] == ["bundle"] == left_beside(output)


def test_kill_while_replacing_leaves_the_old_or_the_new_bundle(tmp_path, output) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", "llama", mtp=None)
    rounds = run_killed(checkpoint, output, "--overwrite")
    for found in rounds:
        assert found["complete"], found
        incomplete = set(found["loadable"]) - set(found["complete"])
        assert all(name.startswith(".bundle.old-") for name in incomplete), found
    assert rounds[-1]["loadable"] == ["bundle"] == left_beside(output)


@pytest.mark.slow
def test_int4_graphs_with_a_draft_head_find_their_weights_in_the_bundle(tmp_path, output) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    source = write_checkpoint(tmp_path / "c", "mimo", dtype="BF16")
    export_bundle(source, output, ExportOptions(weights="int4", draft_vocab=64))
    manifest = load_manifest(output)
    for graph in manifest.graphs.values():
        session = onnxruntime.InferenceSession(str(output / graph.file))
        assert {t.name for t in session.get_outputs()} >= {t.name for t in graph.outputs}
