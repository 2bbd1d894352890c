"""The messages that the doctor can explain."""

from __future__ import annotations

from selfdraft.jetson.explain import Explanation
from selfdraft.jetson.jetpack import JETPACK_6_INDEX

_REBUILD = "# build the engine again on this board, from the same bundle"

MEMORY = (
    Explanation(
        name="killed",
        title="The process was killed for memory",
        pattern=r"\bout of memory: killed process|oom-kill|(^|\n)\s*killed\s*(\n|$)|line \d+: +\d+ killed\b"
        r"|signal 9\b|exit (code|status) 137|returned non-zero exit status -9",
        example="Out of memory: Killed process 4711 (python3) total-vm:61208312kB",
        cause="Linux ended the process: CPU and GPU share one memory. A builder needs several times "
        "the size of the weights at its peak (3.6 times the fp16 weights in the one published case)",
        mend="sudo systemctl isolate multi-user.target    # then int4 weights, or a larger board",
        kinds=(1, 2),
        checks=("memory", "desktop", "swap"),
    ),
    Explanation(
        name="workspace",
        title="TensorRT could not allocate what it asked for",
        pattern=r"requested amount of gpu memory \(\d+ bytes\) could not be allocated",
        example="Requested amount of GPU memory (8589934592 bytes) could not be allocated. There may "
        "not be enough free memory for allocation to succeed.",
        cause="without a limit the builder tries tactics with workspaces as large as the whole "
        "memory",
        mend="config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)    # trtexec: "
        "--memPoolSize=workspace:1024M",
        kinds=(3,),
        checks=("memory", "page-cache"),
    ),
    Explanation(
        name="tactic-skipped",
        title="A tactic was skipped for memory",
        pattern=r"tactic device memory|skipping tactic .{0,80}insufficient memory",
        example="Tactic Device request: 1205MB Available: 998MB. Device memory is insufficient to use "
        "tactic. Skipping tactic 0 due to insufficient memory on requested size of 1205",
        cause="the builder tried one way to compute a layer and took another; the engine may be a "
        "little slower",
        mend="# nothing to do while the build goes on; more free memory lets it try more",
        kinds=(4,),
        harmless=True,
    ),
    Explanation(
        name="nvmap-error-12",
        title="NvMap refuses a large allocation",
        pattern=r"NvMapMemAlloc\w*.{0,40}error (0x)?12\b|NvMapMemAllocInternalTagged",
        example="NvMapMemAllocInternalTagged: 1075072515 error 12",
        cause="error 12 is out of memory: L4T 36.4.7 limits allocations (a side effect of the fix "
        "for CVE-2025-33177); on other releases memory is fragmented",
        mend="sudo apt update && sudo apt dist-upgrade    # to L4T 36.5; elsewhere: sudo reboot",
        kinds=(6, 8),
        checks=("l4t-36.4.7", "fragmentation", "memory"),
    ),
    Explanation(
        name="malloc-async",
        title="The stream-ordered allocator ran out",
        pattern=r"cudaMallocAsync|cudaMallocFromPoolAsync",
        example="cudaMallocAsync failed: out of memory, 20.1 GiB of 61.4 GiB in use",
        cause="on Jetson this allocator stops at about a third of the memory",
        mend="unset PYTORCH_CUDA_ALLOC_CONF    # selfdraft itself uses one cudaMalloc a buffer",
        kinds=(5,),
        checks=("allocator",),
    ),
    Explanation(
        name="address-range",
        title="No address range could be reserved",
        pattern=r"cuMemAddressReserve|cuMemCreate",
        example="CUDA error: out of memory: cuMemAddressReserve(&pool_addr, 34359738368, 0, 0, 0)",
        cause="virtual memory management reserves more addresses than Tegra's driver gives",
        mend="# build the program without it; llama.cpp: cmake -DGGML_CUDA_NO_VMM=ON",
        kinds=(7,),
    ),
    Explanation(
        name="out-of-memory",
        title="CUDA is out of memory",
        pattern=r"cuda runtime \(out of memory\)|cuda error 2\b|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation|cuda out of memory|OutOfMemory\b|cuMemAlloc failed",
        example="Error Code 1: Cuda Runtime (out of memory)",
        cause="CPU and GPU share one memory, GPU allocations cannot use swap, and page cache counts "
        "as used for CUDA",
        mend="sync && echo 3 | sudo tee /proc/sys/vm/drop_caches && sudo systemctl isolate "
        "multi-user.target",
        kinds=(2, 9),
        checks=("memory", "desktop", "page-cache", "fragmentation", "l4t-36.4.7"),
    ),
)

ENGINES = (
    Explanation(
        name="version-tag",
        title="The engine is of another TensorRT",
        pattern=r"version tag does not match|expecting library version|"
        r"serialization (error|assertion).{0,200}version|engine plan file is not compatible",
        example="Error Code 1: Serialization (Serialization assertion stdVersionRead == "
        "serializationVersion failed.Version tag does not match. Note: Current Version: 237, "
        "Serialized Engine Version: 239)",
        cause="a plan works with the TensorRT version, GPU and system it was built with only",
        mend=_REBUILD,
        kinds=(10, 30),
        checks=("tensorrt-versions",),
    ),
    Explanation(
        name="plugin-creator",
        title="The engine needs a plugin that is not loaded",
        pattern=r"cannot deserialize plugin|IPluginCreator not found|getPluginCreator could not find"
        r"|could not find plugin creator",
        example="IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Cannot deserialize "
        "plugin since corresponding IPluginCreator not found in Plugin Registry)",
        cause="the plugin library must be loaded before the engine is opened",
        mend="export SELFDRAFT_PLUGIN_PATH=/absolute/path/to/libselfdraft_plugins.so",
        kinds=(11,),
        checks=("plugins", "plugin-path", "plugin-code"),
    ),
    Explanation(
        name="plugin-not-found",
        title="The parser does not know an operator",
        pattern=r"plugin not found, are the plugin name, version, and namespace correct",
        example='[graph.cpp::parse] Assertion failed: creator && "Plugin not found, are the plugin '
        'name, version, and namespace correct?"',
        cause="the graph has a custom operator whose library is not loaded, or whose version or "
        "namespace differs from the library's",
        mend="export SELFDRAFT_PLUGIN_PATH=/absolute/path/to/libselfdraft_plugins.so    # trtexec: "
        "--staticPlugins=…",
        kinds=(13,),
        checks=("plugins", "plugin-path"),
    ),
    Explanation(
        name="library-path",
        title="A library was not found",
        pattern=r"cannot open shared object file: no such file",
        example="libselfdraft_plugins.so: cannot open shared object file: No such file or directory",
        cause="the path is relative to another folder, or the library is not installed",
        mend='export SELFDRAFT_PLUGIN_PATH="$(realpath libselfdraft_plugins.so)"',
        kinds=(12,),
        checks=("plugin-path", "edgellm-path", "tensorrt"),
    ),
    Explanation(
        name="missing-function",
        title="This TensorRT does not have that",
        pattern=r"IStreamReaderV2|module 'tensorrt\S*' has no attribute|"
        r"'tensorrt[^']*' object has no attribute",
        example="AttributeError: module 'tensorrt' has no attribute 'IStreamReaderV2'",
        cause="JetPack 6 has TensorRT 10.3: no IStreamReaderV2 (10.7), no Python plugins (10.6)",
        mend="# use a program made for TensorRT 10.3, or JetPack 7.2",
        kinds=(17,),
        checks=("tensorrt-features",),
    ),
    Explanation(
        name="builder-flag",
        title="A builder flag that TensorRT 11 no longer has",
        pattern=r"BuilderFlag.{0,40}has no attribute '?(FP16|INT8|BF16|FP8|INT4)"
        r"|platform_has_fast_fp16|IInt8\w*Calibrator",
        example="AttributeError: type object 'tensorrt.BuilderFlag' has no attribute 'FP16'",
        cause="TensorRT 11 builds strongly typed networks only: types come from the graph",
        mend="# export the graph in the types it should run in; selfdraft's exporter does",
        kinds=(17,),
    ),
    Explanation(
        name="opset",
        title="The graph's operator set is too new",
        pattern=r"opset.{0,40}(not supported|unsupported|newer)|GroupNormalization.{0,60}opset"
        r"|no importer registered for op|ai\.onnx.{0,20}opset \d+ is under development",
        example="No importer registered for op: GroupNormalization. Attempting to import as plugin.",
        cause="TensorRT 10.3 reads opset 9 to 20",
        mend="# export again for this board's target; any exporter: opset_version=20 or lower",
        kinds=(28,),
        checks=("tensorrt-features",),
    ),
    Explanation(
        name="int8-dequantize",
        title="INT8 dequantisation failed in Myelin",
        pattern=r"myelin.{0,200}dequantize|dequantize.{0,200}myelin|"
        r"could not find any implementation for node .{0,200}dequantizelinear",
        example="Error Code 10: Internal Error (Could not find any implementation for node "
        "{ForeignNode[model.layers.0.weight_DequantizeLinear...]})",
        cause="known fault of TensorRT 10.16.2 on sm_87",
        mend="# use int4 or fp16 weights on this board",
        kinds=(21,),
        checks=("int8-dequantize",),
    ),
    Explanation(
        name="myelin-plugin",
        title="A plugin layer failed in Myelin",
        pattern=r"PLUGIN_V3.{0,200}myelin|myelin.{0,200}PLUGIN_V3",
        example="Error Code 9: Internal Error (PLUGIN_V3: unexpected node type in Myelin)",
        cause="the plugin's attributes, types or shapes are not those the graph was made for: "
        "library and graph come from different versions",
        mend="selfdraft doctor    # then export and build again, with one version for both",
        kinds=(19,),
        checks=("plugins", "plugin-code"),
    ),
    Explanation(
        name="fused-attention",
        title="No fused attention kernel for this GPU",
        pattern=r"\bfmha\b.{0,120}(not supported|no kernel)|unsupported.{0,40}\bfmha\b"
        r"|mha_v2.{0,80}not supported",
        example="[TensorRT-LLM][WARNING] FMHA is not supported on sm_87, falling back to unfused MHA",
        cause="NVIDIA's fused kernels leave out sm_87; selfdraft brings its own",
        mend="# nothing to do for selfdraft",
        kinds=(22,),
        harmless=True,
    ),
    Explanation(
        name="dla",
        title="A layer does not run on the DLA",
        pattern=r"default DLA is enabled but layer|not supported on DLA|DLA.{0,60}falling back to GPU",
        example="Default DLA is enabled but layer (MatMul_12) is not supported on DLA, falling back "
        "to GPU.",
        cause="the DLA is made for convolutions; language models gain nothing there",
        mend="# build for the GPU: leave --useDLACore out",
        kinds=(33,),
    ),
)

CUDA = (
    Explanation(
        name="no-kernel-image",
        title="No GPU code for this GPU",
        pattern=r"no kernel image is available|cudaErrorNoKernelImageForDevice|"
        r"CUDA_ERROR_NO_BINARY_FOR_GPU|cuda error 209\b",
        example="RuntimeError: CUDA error: no kernel image is available for execution on the device",
        cause="the library was built for other GPUs; Orin is sm_87, and code for sm_80 does not run "
        "there",
        mend="# build it with -gencode arch=compute_87,code=sm_87, or take a wheel for Jetson",
        kinds=(23,),
        checks=("plugin-code", "torch"),
    ),
    Explanation(
        name="sm87-artefact",
        title="A precompiled kernel for sm_87 is missing",
        pattern=r"(cute|artifact|cubin).{0,120}sm_?87.{0,60}(not found|missing|no such)"
        r"|(not found|missing|no such).{0,120}(cute|artifact|cubin).{0,60}sm_?87",
        example="RuntimeError: cuteDSL artifact for sm_87 not found",
        cause="the program ships kernels for some GPUs only, and not for Orin",
        mend="# build its kernels with architecture 87 on the board",
        kinds=(18,),
        checks=("plugin-code",),
    ),
    Explanation(
        name="illegal-address",
        title="A kernel used an illegal address",
        pattern=r"illegal memory access|cuda error 700\b|cudaErrorIllegalAddress|"
        r"CUDA_ERROR_ILLEGAL_ADDRESS",
        example="CUDA error 700: an illegal memory access was encountered",
        cause="with TensorRT most often a context whose optimisation profile was changed while its "
        "buffers stayed; every later CUDA call fails too",
        mend="# one execution context for each profile; restart the program",
        kinds=(20,),
    ),
    Explanation(
        name="context-stack",
        title="pycuda's contexts are mixed up",
        pattern=r"context stack was not empty",
        example="PyCUDA ERROR: The context stack was not empty upon module cleanup.",
        cause="pycuda.autoinit makes a context of its own beside the one that TensorRT uses",
        mend="# use the primary context (pycuda.autoprimaryctx), and pop it before exit",
        kinds=(15,),
    ),
    Explanation(
        name="cudart-stub",
        title="A stub of CUDA's runtime was loaded",
        pattern=r"libcudart\.so\.\d+.{0,80}(file too short|invalid ELF header|stub)"
        r"|CUDA driver is a stub library",
        example="ImportError: libcudart.so.13: file too short",
        cause="a package brought an empty library that stands before CUDA's own on the search path",
        mend="export LD_LIBRARY_PATH=/usr/local/cuda/lib64:$LD_LIBRARY_PATH",
        kinds=(),
    ),
    Explanation(
        name="over-current",
        title="The board lowers its clocks",
        pattern=r"system throttled due to over-?current",
        example="System throttled due to over-current.",
        cause="the supply or the power mode allows less than the load asks for",
        mend="# use the supply that came with the board, or a mode with less power",
        kinds=(25,),
        checks=("over-current", "temperature", "power-mode"),
    ),
    Explanation(
        name="bad-power-mode",
        title="nvpmodel does not know that mode",
        pattern=r"NVPM ERROR.{0,40}bad power mode",
        example="NVPM ERROR: request for bad power mode 2",
        cause="mode numbers differ between modules, and between plain and Super configurations",
        mend="grep POWER_MODEL /etc/nvpmodel.conf    # then: sudo nvpmodel -m ID",
        kinds=(27,),
        checks=("power-mode", "super-mode"),
    ),
)

PYTHON = (
    Explanation(
        name="no-tensorrt-module",
        title="Python does not find tensorrt",
        pattern=r"no module named '?\"?tensorrt",
        example="ModuleNotFoundError: No module named 'tensorrt'",
        cause="JetPack's binding works with the distribution's own Python only, and a virtual "
        "environment does not look there by itself",
        mend="/usr/bin/python3 -m venv --system-site-packages ~/selfdraft-venv",
        kinds=(16,),
        checks=("tensorrt-python", "tensorrt"),
    ),
    Explanation(
        name="nvcc-missing",
        title="pycuda's build does not find CUDA",
        pattern=r"nvcc.{0,40}(not found|not in path|no such file)|'nvcc'|"
        r"cuda\.h: no such file|fatal error: cuda\.h",
        example="*** CUDA_ROOT not set, and nvcc not in path. Giving up.\n"
        "src/cpp/cuda.hpp:14:10: fatal error: cuda.h: No such file or directory",
        cause="JetPack does not put /usr/local/cuda/bin on the path",
        mend="PATH=/usr/local/cuda/bin:$PATH pip install pycuda",
        kinds=(14,),
        checks=("nvcc", "cuda-header"),
    ),
    Explanation(
        name="numpy-abi",
        title="A module was built for NumPy 1",
        pattern=r"numpy\.core\.multiarray failed to import|compiled using numpy 1\.x cannot be run"
        r"|_ARRAY_API not found|numpy\.dtype size changed",
        example="ImportError: numpy.core.multiarray failed to import",
        cause="pip's NumPy 2 stands before the system's modules that were built for NumPy 1",
        mend="pip install 'numpy<2'",
        kinds=(19,),
        checks=("numpy",),
    ),
    Explanation(
        name="no-onnxruntime-gpu",
        title="pip finds no onnxruntime-gpu",
        pattern=r"no matching distribution found for onnxruntime-gpu|could not find a version that "
        r"satisfies the requirement onnxruntime-gpu|jetson-ai-lab\.dev",
        example="ERROR: No matching distribution found for onnxruntime-gpu",
        cause="the default index has no wheel for JetPack 6 (Python 3.10, Tegra's CUDA 12.6); the "
        "Jetson AI Lab's index moved from .dev to .io",
        mend=f"pip install onnxruntime-gpu --extra-index-url {JETPACK_6_INDEX}    # JetPack 7.2: pip "
        "install onnxruntime-gpu",
        kinds=(24,),
        checks=("onnxruntime-gpu",),
    ),
    Explanation(
        name="no-cuda-provider",
        title="ONNX Runtime has no CUDA provider",
        pattern=r"CUDAExecutionProvider.{0,80}not in available provider|"
        r"failed to create CUDAExecutionProvider",
        example="Specified provider 'CUDAExecutionProvider' is not in available provider names. "
        "Available providers: 'CPUExecutionProvider'",
        cause="the CPU build is installed, or it hides the one with CUDA",
        mend="pip uninstall -y onnxruntime onnxruntime-gpu    # then as the check says",
        kinds=(24,),
        checks=("onnxruntime-twice", "onnxruntime-gpu"),
    ),
    Explanation(
        name="not-on-jetson",
        title="The program does not support Jetson",
        pattern=r"jetson.{0,60}(not|un)\s?supported|unsupported platform.{0,40}aarch64|"
        r"tensorrt.llm.{0,60}aarch64.{0,40}not",
        example="RuntimeError: Jetson is not supported on the main branch",
        cause="builders for servers do not make engines for Orin, and their engines do not load "
        "there",
        mend="# export on the workstation, build on the board",
        kinds=(30,),
        checks=("jetson",),
    ),
    Explanation(
        name="jetpack-missing",
        title="A tool says that JetPack is missing",
        pattern=r"jetpack.{0,20}(missing|not detected|not found|not installed)",
        example="Jetpack missing! - Model: NVIDIA Orin NX Developer Kit - L4T: 36.4.4",
        cause="the tool looks for the package nvidia-jetpack; a board flashed with L4T alone does "
        "not have it, or the tool's table is older than the board",
        mend="sudo apt install nvidia-jetpack",
        kinds=(29,),
        checks=("jetpack-package", "l4t"),
        harmless=True,
    ),
)

EXPLANATIONS: tuple[Explanation, ...] = (*MEMORY, *ENGINES, *CUDA, *PYTHON)
