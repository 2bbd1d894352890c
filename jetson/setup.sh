#!/usr/bin/env bash
# Sets selfdraft up on a Jetson Orin with JetPack 6.1+ or 7.2+: what is there stays, what is missing
# is added, so that it can be run again at any time. Results go to stdout, errors to stderr.
#
#   jetson/setup.sh              set up
#   jetson/setup.sh --check      only tell what is missing; changes nothing
#   jetson/setup.sh --uninstall  remove what this script made
set -euo pipefail

readonly JETPACK_6_INDEX=https://pypi.jetson-ai-lab.io/jp6/cu126
readonly MARK=.selfdraft-venv
readonly EXIT_CONFIG=2 EXIT_DEVICE=5 EXIT_MISSING=6

root=${SELFDRAFT_SETUP_ROOT:-} # another root folder, for tests
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${SELFDRAFT_VENV:-$HOME/selfdraft-venv}
jetpack=
action=set_up
onnxruntime=gpu
with_pycuda=yes
with_kernels=yes
with_server=no
kernels=${SELFDRAFT_HOME:-$HOME/.cache/selfdraft}/kernels
plugins=${SELFDRAFT_HOME:-$HOME/.cache/selfdraft}/plugins
missing=0

usage() {
  cat <<'TEXT'
usage: jetson/setup.sh [--check | --uninstall] [options]

  --check             only tell what is missing; exits with 6 if something is
  --uninstall         remove the virtual environment that this script made
  --venv FOLDER       the virtual environment (SELFDRAFT_VENV; default ~/selfdraft-venv)
  --jetpack 6|7       where /etc/nv_tegra_release is not there to tell (containers)
  --cpu-onnxruntime   ONNX Runtime without CUDA, from the default index
  --no-pycuda         leave pycuda out; the TensorRT backend needs it
  --serve             the libraries of selfdraft serve too; a run without it leaves them as they are
  --no-kernels        do not compile GPU kernels and plugin library; the TensorRT backend needs them
  -h, --help          this text
TEXT
}

fail() { # exit code, problem, hint
  printf 'error: %s\nhint: %s\n' "$2" "$3" >&2
  exit "$1"
}

parse_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --check) action=check ;;
      --uninstall) action=uninstall ;;
      --venv | --jetpack)
        [ $# -gt 1 ] || fail $EXIT_CONFIG "$1 needs a value" "see: jetson/setup.sh --help"
        if [ "$1" = --venv ]; then venv=$2; else jetpack=$2; fi
        shift
        ;;
      --cpu-onnxruntime) onnxruntime=cpu ;;
      --no-pycuda) with_pycuda=no ;;
      --no-kernels) with_kernels=no ;;
      --serve) with_server=yes ;;
      -h | --help) usage && exit 0 ;;
      *) fail $EXIT_CONFIG "unknown option $1" "see: jetson/setup.sh --help" ;;
    esac
    shift
  done
}

# --- the board ---------------------------------------------------------------------------------

l4t_release() { # "36.4.3" of the release file; nothing where there is none
  sed -n -E 's/^# R([0-9]+) \(release\), REVISION: ([0-9.]+),.*/\1.\2/p' \
    "$root/etc/nv_tegra_release" 2>/dev/null | head -n 1
}

find_jetpack() {
  local l4t
  l4t=$(l4t_release || true)
  [ "$(uname -m)" = aarch64 ] ||
    fail $EXIT_DEVICE "this is a $(uname -m) machine, no Jetson" "on a workstation: make demo"
  if [ -z "$jetpack" ]; then
    case $l4t in
      36.4* | 36.5* | 36.[6-9]*) jetpack=6 ;;
      39.*) jetpack=7 ;;
      '') fail $EXIT_DEVICE "no /etc/nv_tegra_release" "in a container: --jetpack 6 or --jetpack 7" ;;
      *) fail $EXIT_DEVICE "L4T $l4t is not served" "flash JetPack 6.2 or 7.2 (SDK Manager)" ;;
    esac
  fi
  case $jetpack in
    6) python=python3.10 cuda=12-6 ;;
    7) python=python3.12 cuda=13-2 ;;
    *) fail $EXIT_CONFIG "JetPack $jetpack is not served" "give --jetpack 6 or --jetpack 7" ;;
  esac
  printf 'JetPack %s%s, %s\n' "$jetpack" "${l4t:+ (L4T $l4t)}" "$python"
}

# --- steps -------------------------------------------------------------------------------------

# step TITLE IS_DONE DO: tells that it is done, or does it; with --check tells that it is missing.
step() {
  local title=$1 is_done=$2 do=$3
  if "$is_done"; then
    printf 'ok       %s\n' "$title"
  elif [ $action = check ]; then
    printf 'missing  %s\n' "$title"
    missing=$((missing + 1))
  else
    printf 'doing    %s\n' "$title"
    "$do"
    "$is_done" || fail $EXIT_DEVICE "$title: still missing" "read the lines above, then repeat"
  fi
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

packages() {
  printf '%s\n' "$python-venv" "$python-dev" g++ python3-libnvinfer libnvinfer-bin
  [ $with_pycuda$with_kernels = nono ] || printf '%s\n' "cuda-nvcc-$cuda" "cuda-cudart-dev-$cuda"
  [ $with_kernels = no ] || printf '%s\n' libnvinfer-headers-dev
  [ $with_pycuda = no ] || printf '%s\n' "libcurand-dev-$cuda"
}

missing_packages() {
  local name
  for name in $(packages); do
    # shellcheck disable=SC2016 # the format is for dpkg-query
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
  done
}

has_packages() { [ -z "$(missing_packages)" ]; }

install_packages() {
  local names
  mapfile -t names < <(missing_packages)
  as_root apt-get update
  as_root apt-get install -y --no-install-recommends "${names[@]}"
}

has_venv() {
  [ -f "$venv/$MARK" ] && grep -qi '^include-system-site-packages *= *true' "$venv/pyvenv.cfg" &&
    [ "$("$venv/bin/python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')" = "$python" ]
}

make_venv() {
  [ ! -e "$venv" ] ||
    fail $EXIT_CONFIG "$venv is there, and not from this script or for another Python" \
      "remove it, or choose another folder with --venv"
  "$root/usr/bin/$python" -m venv --system-site-packages "$venv"
  echo "made by selfdraft's jetson/setup.sh" >"$venv/$MARK"
}

in_venv() { [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "$1" >/dev/null 2>&1; }

pip_install() { "$venv/bin/python" -m pip install --disable-pip-version-check "$@"; }

has_tensorrt() { in_venv 'import tensorrt'; }

explain_tensorrt() {
  fail $EXIT_DEVICE "$venv does not see TensorRT" \
    "sudo apt install --reinstall python3-libnvinfer, then: ls /usr/lib/$python/dist-packages/tensorrt"
}

has_selfdraft() {
  in_venv 'import selfdraft.cli.main, numpy, tokenizers, safetensors' &&
    { [ $with_server = no ] || in_venv 'import starlette, uvicorn, prometheus_client'; }
}

install_selfdraft() { # editable: it follows the clone
  local wanted=$source_folder
  [ $with_server = no ] || wanted+='[serve]'
  [ -f "$source_folder/pyproject.toml" ] ||
    fail $EXIT_CONFIG "$source_folder is no clone of selfdraft" "run the script from a clone"
  # JetPack 6's own SciPy and others were built for NumPy 1.
  if [ "$jetpack" = 6 ]; then
    pip_install -e "$wanted" 'numpy>=1.26,<2'
  else
    pip_install -e "$wanted"
  fi
}

has_onnxruntime() {
  if [ $onnxruntime = gpu ]; then
    in_venv 'import onnxruntime as o; assert "CUDAExecutionProvider" in o.get_available_providers()'
  else
    in_venv 'import onnxruntime'
  fi
}

install_onnxruntime() {
  local wanted=(onnxruntime)
  if [ $onnxruntime = gpu ]; then
    # Both builds share one folder: the one installed last would hide the other.
    "$venv/bin/python" -m pip uninstall -y onnxruntime || true
    wanted=('onnxruntime-gpu>=1.27')
    # The default index has no build for JetPack 6, only what that build needs.
    [ "$jetpack" = 7 ] || wanted=(onnxruntime-gpu --extra-index-url "$JETPACK_6_INDEX")
  fi
  [ "$jetpack" = 7 ] || wanted+=('numpy<2')
  pip_install "${wanted[@]}" ||
    fail $EXIT_DEVICE "ONNX Runtime could not be installed" "without CUDA: --cpu-onnxruntime"
}

has_pycuda() { in_venv 'import pycuda.driver'; }

install_pycuda() {
  # pycuda is built here, and finds CUDA by nvcc on the path.
  PATH="$root/usr/local/cuda/bin:$PATH" CUDA_ROOT="$root/usr/local/cuda" pip_install pycuda
}

has_kernels() { # compiled, and none of their sources is newer
  local cubin
  cubin=$(find "$kernels" -name '*.cubin' -print -quit 2>/dev/null)
  [ -n "$cubin" ] && [ -f "$plugins/libselfdraft_plugins.so" ] &&
    [ -z "$(find "$source_folder/trt_plugins" \( -name '*.cu*' -o -name '*.?pp' \) \
      -newer "$cubin" -print -quit)" ]
}

build_kernels() {
  PATH="$root/usr/local/cuda/bin:$PATH" "$venv/bin/selfdraft" plugins build --arch sm_87 \
    --install --output "$kernels"
}

set_up() {
  find_jetpack
  step "packages $(packages | tr '\n' ' ')" has_packages install_packages
  step "virtual environment $venv that sees the system's packages" has_venv make_venv
  step "TensorRT in that environment" has_tensorrt explain_tensorrt
  local title=selfdraft
  [ $with_server = no ] || title+=" with the libraries of its server"
  step "$title" has_selfdraft install_selfdraft
  step "ONNX Runtime ($onnxruntime)" has_onnxruntime install_onnxruntime
  [ $with_pycuda = no ] || step "pycuda" has_pycuda install_pycuda
  [ $with_kernels = no ] || step "GPU kernels in $kernels, plugin library in $plugins" has_kernels build_kernels
  power_advice
}

power_advice() {
  local mode_id
  mode_id=$(sed -n -E 's/^< *POWER_MODEL ID=([0-9]+) NAME=MAXN[A-Z_]* *>.*/\1/p' \
    "$root/etc/nvpmodel.conf" 2>/dev/null | head -n 1)
  [ -z "$mode_id" ] || printf 'full speed: sudo nvpmodel -m %s && sudo jetson_clocks\n' "$mode_id"
  printf 'no desktop: sudo systemctl isolate multi-user.target    (1 to 1.5 GB for the GPU)\n'
}

uninstall() {
  if [ ! -e "$venv" ]; then
    printf 'nothing at %s\n' "$venv"
  elif [ -f "$venv/$MARK" ]; then
    rm -rf "$venv"
    printf 'removed %s\n' "$venv"
  else
    fail $EXIT_CONFIG "$venv was not made by this script" "remove it yourself, or give --venv"
  fi
  printf 'left: system packages, and %s\n' "${SELFDRAFT_HOME:-$HOME/.cache/selfdraft}"
}

main() {
  parse_options "$@"
  if [ $action = uninstall ]; then
    uninstall
    return
  fi
  set_up
  [ $missing -eq 0 ] || fail $EXIT_MISSING "$missing steps are missing" "give the same command without --check"
  if [ $action = set_up ]; then
    printf 'ready: . %s/bin/activate && selfdraft doctor\n' "$venv"
  fi
}

main "$@"
