/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy choice: the device finds the best of each part of a row, the host the best of the parts. */
#include "backend/cuda/rows/argmax.h"

#include "backend/cuda/comm/group.h"
#include "backend/cuda/state.h"

static int32_t best_of(const pz_argmax_part *part, int n) {
    int best = -1;
    bool finite = false;
    for (int i = 0; i < n; i++) {
        finite = finite || part[i].finite;
        if (part[i].column >= 0 && (best < 0 || part[i].value > part[best].value)) best = i;
    }
    return finite ? part[best].column : -1;
}

pz_status pz_cuda_argmax(pz_backend *b, const pz_plan *plan, const pz_run_args *args, int place, const int *rows, int n,
                         int32_t *ids, pz_error *err) {
    PZ_TRY(pz_cuda_check_reading(b, plan, place, rows, n, err));
    PZ_TRY(pz_cuda_enter(b, err));
    if (b->group) PZ_TRY(pz_cuda_group_wait(b, err));
    pz_cuda_run r = {.b = b, .plan = plan, .arena = args->arena, .m = plan->m};
    pz_argmax_params p = {.x = pz_cuda_matrix(&r, place), .cols = (int)plan->places.at[place].type.dim[1]};
    p.parts = (int)pz_ceil_div(p.cols, PZ_ARGMAX_SPAN);
    PZ_TRY(pz_cuda_pinned_grow(&b->results, (size_t)n * (size_t)p.parts * sizeof *p.out, err));
    pz_argmax_part *parts = b->results.data;
    for (int first = 0; first < n; first += PZ_ARGMAX_ROWS) {
        p.n = n - first < PZ_ARGMAX_ROWS ? n - first : PZ_ARGMAX_ROWS;
        p.out = parts + (size_t)first * (size_t)p.parts;
        memcpy(p.rows, rows + first, (size_t)p.n * sizeof *rows);
        PZ_TRY(pz_cuda_launch_argmax(&p, b->stream, err));
    }
    PZ_TRY(pz_cuda_check(cudaStreamSynchronize(b->stream), "greedy choice", err));
    for (int i = 0; i < n; i++) ids[i] = best_of(parts + (size_t)i * (size_t)p.parts, p.parts);
    return PZ_OK;
}
