/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of experts. */
#include <float.h>

#include "backend/cpu/cpu.h"

typedef struct router_job {
    const pz_cpu_run *r;
    pz_rows logits, weights;
    int32_t *ids;
    const float *bias; /* NULL: none */
    int64_t experts, top_k, n_group, topk_group, group_top;
    bool sigmoid, norm;
    float scale;
} router_job;

static void read_router(const pz_launch *l, router_job *j) {
    j->top_k = pz_node_int(l->node, "top_k");
    j->n_group = pz_node_int(l->node, "n_group");
    j->topk_group = pz_node_int(l->node, "topk_group");
    j->group_top = pz_node_int(l->node, "group_top");
    j->sigmoid = pz_streq(pz_node_str(l->node, "scoring"), "sigmoid");
    j->norm = pz_node_int(l->node, "norm") != 0;
    j->scale = (float)pz_node_float(l->node, "scale");
}

pz_status pz_cpu_check_router(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    router_job j = {0};
    read_router(l, &j);
    PZ_TRY(pz_cpu_check_act(r, l, "logits", 0, err));
    int64_t n = r->plan->places.at[pz_cpu_in(l, "logits")].type.dim[1];
    if (j.n_group < 1 || n % j.n_group != 0 || j.topk_group < 1 || j.topk_group > j.n_group || j.group_top < 1 ||
        j.group_top > n / j.n_group || j.top_k < 1 || j.top_k > j.topk_group * (n / j.n_group))
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "top %lld of %lld experts in the best %lld of %lld groups",
                             (long long)j.top_k, (long long)n, (long long)j.topk_group, (long long)j.n_group);
    if (!j.sigmoid && !pz_streq(pz_node_str(l->node, "scoring"), "softmax"))
        return pz_cpu_refuse(l, PZ_E_UNSUPPORTED, err, "scoring %s; there are sigmoid, softmax",
                             pz_node_str(l->node, "scoring"));
    if (pz_cpu_in_weight(l, "bias")) PZ_TRY(pz_cpu_check_vector(r, l, "bias", n, err));
    const pz_place *ids = l->out[0] >= 0 ? &r->plan->places.at[l->out[0]] : NULL;
    if (!ids || ids->type.dt != PZ_DT_I32 || ids->ld != j.top_k)
        return pz_cpu_refuse(l, PZ_E_TYPE, err, "ids must be i32[m,%lld]", (long long)j.top_k);
    pz_cpu_want(r, 3 * pz_floats(n, 1) + pz_floats(j.n_group, 1) + pz_floats(j.top_k, 1), 0);
    return pz_cpu_check_out(r, l, 1, j.top_k, err);
}

/* So that -INFINITY can stand for what is struck out. NaN counts as the largest: it is chosen and shows in the result.
 */
static void make_comparable(float *v, int64_t n) {
    for (int64_t i = 0; i < n; i++) v[i] = isnan(v[i]) ? INFINITY : v[i] < -FLT_MAX ? -FLT_MAX : v[i];
}

/* Index of the largest of n values, the lowest of equals, which is then struck out; *value is what it was. */
static int64_t take_largest(float *v, int64_t n, float *value) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    *value = v[best];
    v[best] = -INFINITY;
    return best;
}

/* Strikes the experts of all but the best groups out. group: [n_group], work: one group's experts. */
static void keep_groups(const router_job *j, float *choice, float *group, float *work) {
    int64_t size = j->experts / j->n_group;
    float value;
    for (int64_t g = 0; g < j->n_group; g++) {
        memcpy(work, choice + g * size, (size_t)size * sizeof *work);
        group[g] = 0;
        for (int64_t t = 0; t < j->group_top; t++) {
            take_largest(work, size, &value);
            group[g] += value;
        }
    }
    make_comparable(group, j->n_group);
    for (int64_t t = 0; t < j->n_group; t++) {
        int64_t best = take_largest(group, j->n_group, &value);
        for (int64_t e = best * size; t >= j->topk_group && e < (best + 1) * size; e++) choice[e] = -INFINITY;
    }
}

static void route_row(const router_job *j, int64_t row, float *scratch) {
    const pz_simd *simd = j->r->simd;
    int64_t n = j->experts;
    size_t step = pz_floats(n, 1) / sizeof(float);
    float *score = scratch, *choice = score + step, *work = choice + step, *group = work + step;
    float *weight = group + pz_floats(j->n_group, 1) / sizeof(float), sum = 0, value;
    pz_rows_copy(simd, &j->logits, row, 0, n, score);
    if (j->sigmoid)
        for (int64_t e = 0; e < n; e++) score[e] = 1.f / (1.f + expf(-score[e]));
    else
        simd->attention->softmax(score, n);
    for (int64_t e = 0; e < n; e++) choice[e] = j->bias ? score[e] + j->bias[e] : score[e];
    make_comparable(choice, n);
    if (j->topk_group < j->n_group) keep_groups(j, choice, group, work);
    for (int64_t t = 0; t < j->top_k; t++) {
        int64_t e = take_largest(choice, n, &value);
        j->ids[row * j->top_k + t] = (int32_t)e;
        weight[t] = score[e];
        sum += weight[t];
    }
    for (int64_t t = 0; t < j->top_k; t++) weight[t] = (j->norm ? weight[t] / (sum + 1e-20f) : weight[t]) * j->scale;
    pz_rows_put(simd, &j->weights, row, 0, j->top_k, weight);
}

static void router_region(void *arg, int tid, int nthreads) {
    const router_job *j = arg;
    int64_t begin, end;
    pz_cpu_share(j->r->m, tid, nthreads, &begin, &end);
    for (int64_t row = begin; row < end; row++) route_row(j, row, pz_cpu_thread_scratch(j->r, tid));
}

pz_status pz_cpu_run_router(pz_cpu_run *r, const pz_launch *l, pz_error *err) {
    (void)err;
    router_job j = {.r = r, .logits = pz_cpu_in_rows(r, l, "logits"), .weights = pz_cpu_rows(r, l->out[1])};
    read_router(l, &j);
    j.experts = j.logits.cols;
    j.ids = (int32_t *)(void *)(r->arena + r->plan->places.at[l->out[0]].offset);
    if (pz_cpu_in_weight(l, "bias")) j.bias = pz_cpu_weight_of(r, pz_cpu_in_weight(l, "bias"))->vector;
    pz_cpu_par(r, r->m * j.experts * (32 + j.top_k), router_region, &j);
    return PZ_OK;
}
