/* SPDX-License-Identifier: Apache-2.0 */
/* How every kernel is launched: one function, with programmatic stream serialization or without. */
#ifndef PZ_LAUNCH_CUH
#define PZ_LAUNCH_CUH

#include "backend/cuda/cuda.h"

/* Launches kernel<<<grid, block, smem, stream>>>(args...). dependent: it may start while the kernel before it still
 * runs, and orders itself after it with pz_wait. */
template <typename... Params, typename... Args>
static pz_status pz_cuda_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream,
                                bool dependent, const char *name, pz_error *err, Args... args) {
    cudaLaunchAttribute attr[1];
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    config.attrs = attr;
    config.numAttrs = dependent ? 1 : 0;
    return pz_cuda_check(cudaLaunchKernelEx(&config, kernel, Params(args)...), name, err);
}

#endif
