#!/bin/bash
# Makes an emulated Debian arm64 from nothing, installs the runtime in it without torch, and checks
# that it generates the same greedy tokens as this machine (fp32; int4 is compared and told). What it cannot show: TensorRT and CUDA.
#
#   sudo tests/arm64/emulate.sh [FOLDER]      FOLDER: default build/arm64, kept for the next run
#
# PYTHON   interpreter with selfdraft[cpu,export] (default python3)
# SUITE    Debian release (default bookworm: Python 3.11, between the boards' 3.10 and 3.12)
# ORT      onnxruntime for arm64 (default 1.23.2: what Python 3.10 on a board gets; newer than
#          1.26 ends with a segmentation fault under qemu 7.2)
set -euo pipefail

PYTHON=${PYTHON:-python3}
SUITE=${SUITE:-bookworm}
ORT=${ORT:-1.23.2}
MIRROR=${MIRROR:-http://deb.debian.org/debian}
SOURCES=$(cd "$(dirname "$0")/../.." && pwd)
FOLDER=$(mkdir -p "${1:-$SOURCES/build/arm64}" && cd "${1:-$SOURCES/build/arm64}" && pwd)
ROOT=$FOLDER/root
SITE=$ROOT/opt/site
NEEDED=(qemu-user-static binfmt-support debootstrap debian-archive-keyring)

say() { echo "arm64: $*" >&2; }

fail() { echo "error: $1" >&2; echo "hint: $2" >&2; exit 5; }

install_tools() {
  command -v debootstrap >/dev/null && command -v qemu-aarch64-static >/dev/null && return
  command -v apt-get >/dev/null || fail "no debootstrap and qemu" "install: ${NEEDED[*]}"
  say "installing ${NEEDED[*]}"
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${NEEDED[@]}" >/dev/null
}

register_qemu() {
  [ -e /proc/sys/fs/binfmt_misc/register ] ||
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc ||
    fail "binfmt_misc cannot be mounted" "run this as root, in a container with --privileged"
  [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64
}

make_root() {
  [ -e "$FOLDER/.root-$SUITE" ] && return
  say "unpacking Debian $SUITE arm64 (a minute)"
  rm -rf --one-file-system "$ROOT"
  debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 \
    "$SUITE" "$ROOT" "$MIRROR" >"$FOLDER/debootstrap.log"
  say "setting it up under emulation (some minutes)"
  chroot "$ROOT" /debootstrap/debootstrap --second-stage >>"$FOLDER/debootstrap.log"
  touch "$FOLDER/.root-$SUITE"
}

# Runs a command inside. ONNX Runtime wants /sys and /proc; they are mounted in a name space of the
# command's own, so that nothing is left behind. NumPy under qemu warns without a cause.
inside() {
  # shellcheck disable=SC2016  # $0 and $@ are the inner shell's
  unshare --mount sh -c 'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" &&
    mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"' "$ROOT" \
    env LC_ALL=C.UTF-8 PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1 \
    PYTHONWARNINGS=ignore::RuntimeWarning "$@"
}

install_runtime() {
  local version
  version=$(inside python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  say "installing the runtime for Python $version on aarch64, onnxruntime $ORT"
  rm -rf "$SITE"
  "$PYTHON" "$SOURCES/tests/arm64/install.py" "$SITE" --python "$version" --engine "onnxruntime==$ORT"
  inside python3 -c 'import importlib.util as u; assert u.find_spec("torch") is None; assert u.find_spec("onnx") is None'
}

export_bundles() {
  local weights
  for weights in fp32 int4; do
    rm -rf "${FOLDER:?}/$weights"
    PYTHONPATH=$SOURCES/src "$PYTHON" -m selfdraft export "$SOURCES/demo/checkpoint" \
      -o "$FOLDER/$weights" --weights "$weights" --json >"$FOLDER/export-$weights.json"
  done
  rm -rf "$ROOT/opt/bundles"
  mkdir -p "$ROOT/opt/bundles"
  cp -r "$FOLDER/fp32" "$FOLDER/int4" "$ROOT/opt/bundles/"
}

# Token ids of one greedy reply: here, and inside.
compare() {
  local weights=$1 drafts=$2 prompt=$3 options here there
  options=(--drafts "$drafts" --temperature 0 --max-tokens 48 --json)
  here=$(PYTHONPATH=$SOURCES/src "$PYTHON" -m selfdraft generate "$FOLDER/$weights" "$prompt" \
    "${options[@]}" | tokens)
  there=$(inside python3 -m selfdraft generate "/opt/bundles/$weights" "$prompt" \
    "${options[@]}" | tokens)
  if [ -z "$here" ] || [ "$here" != "$there" ]; then
    echo "$weights, $drafts drafts, \"$prompt\": the tokens differ" >&2
    echo "  $(uname -m): $here" >&2
    echo "  aarch64: $there" >&2
    return 1
  fi
  say "$weights, $drafts drafts: $(wc -w <<<"$here") equal tokens for \"$prompt\""
}

# Token ids of a reply on stdin; nothing where there is no reply.
tokens() {
  "$PYTHON" -c 'import json, sys; text = sys.stdin.read(); print(*json.loads(text)["tokens"] if text else ())'
}

# fp32 must agree. int4 products run as int8 arithmetic in kernels that differ between CPUs, so a near
# tie may fall otherwise: such a reply is shown and counted, and is no failure.
compare_all() {
  local failed=0 other=0 weights drafts prompt
  for weights in fp32 int4; do
    for drafts in 0 2; do
      for prompt in "Why is the sky blue?" "Tell me a story about a fox."; do
        compare "$weights" "$drafts" "$prompt" && continue
        if [ "$weights" = fp32 ]; then failed=$((failed + 1)); else other=$((other + 1)); fi
      done
    done
  done
  say "int4: $((4 - other)) of 4 replies equal"
  [ "$failed" -eq 0 ] || fail "$failed of 4 fp32 replies differ" "compare the two lines above"
}

[ "$(id -u)" -eq 0 ] || fail "a chroot needs root" "sudo make test-arm64"
install_tools
register_qemu
make_root
install_runtime
export_bundles
inside python3 -c 'import platform as p, onnxruntime as o; print("arm64:", p.machine(), p.python_version(), "onnxruntime", o.__version__)' >&2
compare_all
echo "4 passed, 0 failed"
