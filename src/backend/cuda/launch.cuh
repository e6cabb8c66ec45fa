/* SPDX-License-Identifier: Apache-2.0 */
/* How every kernel is launched: one function, with programmatic stream serialization or without. */
#ifndef PZ_LAUNCH_CUH
#define PZ_LAUNCH_CUH

#include "backend/cuda/cuda.h"

/* Launches kernel<<<grid, block, smem, stream>>>(args...), in clusters of neighbouring blocks. dependent: it may start
 * while the kernel before it still runs, and orders itself after it with pz_wait. */
template <typename... Params, typename... Args>
static pz_status pz_cuda_launch_clusters(void (*kernel)(Params...), dim3 grid, dim3 block, int cluster, size_t smem,
                                         cudaStream_t stream, bool dependent, const char *name, pz_error *err,
                                         Args... args) {
    cudaLaunchAttribute attr[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    config.attrs = attr;
    if (dependent) {
        attr[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attr[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[config.numAttrs].val.clusterDim.x = (unsigned)cluster;
        attr[config.numAttrs].val.clusterDim.y = 1;
        attr[config.numAttrs++].val.clusterDim.z = 1;
    }
    return pz_cuda_check(cudaLaunchKernelEx(&config, kernel, Params(args)...), name, err);
}

template <typename... Params, typename... Args>
static pz_status pz_cuda_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream,
                                bool dependent, const char *name, pz_error *err, Args... args) {
    return pz_cuda_launch_clusters(kernel, grid, block, 1, smem, stream, dependent, name, err, args...);
}

#endif
