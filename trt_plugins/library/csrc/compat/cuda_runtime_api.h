// What TensorRT's headers need of CUDA's: opaque handles. CUDA itself is opened at run time (driver.hpp).
#pragma once

struct CUstream_st;
struct CUevent_st;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
