/* SPDX-License-Identifier: Apache-2.0 */
#include "support_cpu.h"

#include <stdio.h>

#include "comm/crew.h"

enum { GUARD = 192 };

const char *const *rig_isas(void) {
    static const char *found[4];
    static const char *const all[] = {"baseline", "avx2", "avx512"};
    if (found[0]) return found;
    int n = 0;
    for (int i = 0; i < 3; i++) {
        pz_backend_options o = {.threads = 1, .isa = all[i]};
        pz_backend *b;
        pz_error err;
        pz_status st = pz_backend_cpu()->open(&o, &b, &err);
        if (st == PZ_OK) {
            assert_string_equal(pz_backend_cpu()->isa(b), all[i]);
            pz_backend_cpu()->close(b);
            found[n++] = all[i];
        } else {
            assert_int_equal(st, PZ_E_UNSUPPORTED);
        }
    }
    return found;
}

static rig *open_with(pz_backend_options o, int m, size_t capacity) {
    rig *r = pz_calloc(1, sizeof *r);
    assert_non_null(r);
    r->api = pz_backend_cpu();
    r->capacity = capacity;
    r->arena = pz_aligned_calloc(capacity);
    r->before = pz_calloc(capacity, 1);
    assert_true(r->arena && r->before);

    pz_error err;
    assert_ok(r->api->open(&o, &r->b, &err), &err);
    assert_ok(pz_graph_new("rig", &r->graph, &err), &err);
    assert_ok(pz_graph_add_func(r->graph, "f", false, &r->func, &err), &err);
    r->plan = (pz_plan){.graph = r->graph, .m = m, .arena_bytes = GUARD};
    return r;
}

rig *rig_open(const char *isa, int threads, int m) {
    return rig_open_sized(isa, threads, m, RIG_BYTES);
}

rig *rig_open_sized(const char *isa, int threads, int m, size_t capacity) {
    return open_with((pz_backend_options){.threads = threads, .isa = isa}, m, capacity);
}

rig *rig_open_rank(pz_comm *comm, int threads, int m) {
    return open_with((pz_backend_options){.threads = threads, .comm = comm}, m, RIG_BYTES);
}

void rig_close(rig *r) {
    r->api->close(r->b);
    pz_graph_free(r->graph);
    pz_vec_free(&r->plan.places);
    pz_vec_free(&r->plan.launches);
    pz_vec_free(&r->plan.fills);
    pz_free(r->arena);
    pz_free(r->before);
    pz_free(r);
}

int rig_place(rig *r, pz_dtype dt, int64_t cols) {
    pz_error err;
    int64_t bytes = r->plan.m * (cols ? cols : 1) * pz_dtype_bits(dt) / 8;
    pz_place p = {.name = "%place", .type = pz_type_make(dt, cols ? 2 : 1, PZ_DIM_M, cols, 0), .ld = cols ? cols : 1};
    p.root = r->plan.places.n;
    p.offset = r->plan.arena_bytes;
    p.bytes = bytes;
    p.norm = p.scale_norm = -1;
    assert_true((size_t)(p.offset + bytes + 2 * GUARD) < r->capacity);
    assert_true(p.root < RIG_PLACES);
    memset(r->arena + p.offset - GUARD, 0xff, (size_t)bytes + 2 * GUARD);
    r->plan.arena_bytes = (int64_t)pz_align_up((size_t)(p.offset + bytes), 64) + GUARD;
    assert_ok(pz_push(&r->plan.places, p, &err), &err);
    return p.root;
}

int rig_view(rig *r, int place, int64_t col, int64_t cols) {
    pz_error err;
    pz_place p = r->plan.places.at[place];
    p.type.dim[1] = cols;
    p.col += col;
    p.scale_col += col;
    p.norm = -1;
    assert_ok(pz_push(&r->plan.places, p, &err), &err);
    return r->plan.places.n - 1;
}

int rig_output(rig *r, pz_dtype dt, int64_t cols) {
    int p = rig_place(r, dt, cols);
    r->written[p] = true;
    return p;
}

int rig_normed_output(rig *r, pz_dtype dt, int64_t cols) {
    int p = rig_output(r, dt, cols), norm = rig_output(r, PZ_DT_F32, 0);
    r->plan.places.at[p].norm = norm;
    return p;
}

void *rig_data(rig *r, int place) {
    return r->arena + r->plan.places.at[place].offset;
}

float rig_round(pz_dtype dt, float v) {
    return dt == PZ_DT_BF16 ? pz_bf16_to_f32(pz_f32_to_bf16(v)) : v;
}

int rig_act(rig *r, pz_dtype dt, int64_t cols, float *x) {
    int p = rig_place(r, dt, cols);
    for (int64_t i = 0; i < r->plan.m * cols; i++) {
        x[i] = rig_round(dt, x[i]);
        if (dt == PZ_DT_BF16)
            ((uint16_t *)rig_data(r, p))[i] = pz_f32_to_bf16(x[i]);
        else
            ((float *)rig_data(r, p))[i] = x[i];
    }
    return p;
}

int rig_i32(rig *r, int64_t cols, const int32_t *v) {
    int p = rig_place(r, PZ_DT_I32, cols);
    memcpy(rig_data(r, p), v, (size_t)(r->plan.m * (cols ? cols : 1)) * sizeof *v);
    return p;
}

/* Random codes and scales; values gets what they stand for. */
static void make_mxfp4(int64_t rows, int64_t cols, unsigned char *codes, unsigned char *scales, float *values) {
    static const double e2m1[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    uint64_t state = (uint64_t)(rows * 977 + cols);
    for (int64_t i = 0; i < rows * cols / 32; i++) scales[i] = (unsigned char)rnd_int(&state, 120, 130);
    for (int64_t i = 0; i < rows * cols / 2; i++) codes[i] = (unsigned char)pz_rng_next(&state);
    for (int64_t i = 0; i < rows * cols; i++) {
        int code = codes[i / 2] >> (i % 2 * 4) & 15;
        double v = ldexp(e2m1[code & 7], scales[i / 32] - 127);
        values[i] = (float)(code & 8 ? -v : v);
    }
}

pz_weight *rig_weight(rig *r, const char *name, pz_dtype dt, int rank, const int64_t *dim, float *values, pz_op use) {
    pz_error err;
    pz_type type = {.dt = dt, .rank = rank};
    int64_t rows = 1, cols = dim[rank - 1];
    for (int i = 0; i < rank; i++) type.dim[i] = dim[i];
    for (int i = 0; i + 1 < rank; i++) rows *= dim[i];
    pz_weight *w;
    assert_ok(pz_graph_add_weight(r->graph, name, type, &w, &err), &err);
    size_t row_bytes = (size_t)(cols * pz_dtype_bits(dt) / 8);
    /* One byte off alignment, as a file may have it. Only an embedding is read in place after loading. */
    bool stays = use == PZ_OP_EMBED;
    size_t bytes = (size_t)rows * row_bytes + 1;
    unsigned char *raw = stays ? pz_arena_alloc(&r->graph->arena, bytes) : pz_calloc(bytes, 1), *data = raw + 1;
    unsigned char *scales = pz_calloc((size_t)(rows * cols / 32 + 1), 1);
    assert_true(raw && scales);
    if (dt == PZ_DT_MXFP4) make_mxfp4(rows, cols, data, scales, values);
    for (int64_t i = 0; i < rows * cols && dt != PZ_DT_MXFP4; i++) {
        values[i] = rig_round(dt, values[i]);
        uint16_t h = pz_f32_to_bf16(values[i]);
        memcpy(data + i * pz_dtype_bits(dt) / 8, dt == PZ_DT_BF16 ? (void *)&h : (void *)&values[i],
               (size_t)pz_dtype_bits(dt) / 8);
    }
    pz_host_weight host = {.dt = dt, .rows = rows, .cols = cols};
    int64_t cut = rows / 3;
    pz_host_part part = {
        .data = data, .rows = cut, .row_stride = (int64_t)row_bytes, .scale = scales, .scale_stride = cols / 32};
    if (cut) assert_ok(pz_push(&host.parts, part, &err), &err);
    part.data += (size_t)cut * row_bytes;
    part.scale += cut * (cols / 32);
    part.rows = rows - cut;
    assert_ok(pz_push(&host.parts, part, &err), &err);
    assert_ok(r->api->load(r->b, w, use, &host, &err), &err);
    if (r->mirror) r->mirror(r->mirror_user, w, use, &host);
    pz_vec_free(&host.parts);
    if (!stays) pz_free(raw);
    pz_free(scales);
    return w;
}

pz_launch *rig_launch(rig *r, pz_op op) {
    pz_error err;
    pz_node *node;
    assert_ok(pz_node_new(r->func, -1, op, &node, &err), &err);
    pz_launch l = {.node = node, .op = op, .role = pz_op_text(op), .fill = -1, .slice = -1, .workspace = -1};
    for (int i = 0; i < PZ_MAX_OPERANDS; i++) l.in[i].place = -1;
    for (int i = 0; i < PZ_MAX_RESULTS; i++) l.out[i] = -1;
    assert_ok(pz_push(&r->plan.launches, l, &err), &err);
    return &r->plan.launches.at[r->plan.launches.n - 1];
}

static pz_operand *operand_of(pz_launch *l, const char *operand) {
    int i = pz_op_operand_index(l->op, operand);
    assert_true(i >= 0);
    return &l->in[i];
}
void rig_in(pz_launch *l, const char *operand, int place) {
    operand_of(l, operand)->place = place;
}
void rig_in_weight(pz_launch *l, const char *operand, const pz_weight *w) {
    operand_of(l, operand)->weight = w;
}

/* The planner owns the const; a rig made the node itself. */
static pz_node *node_of(const pz_launch *l) {
    return l->node->func->nodes.at[pz_node_position(l->node)];
}
void rig_attr_int(pz_launch *l, const char *name, int64_t v) {
    pz_error err;
    assert_ok(pz_node_set_int(node_of(l), name, v, &err), &err);
}
void rig_attr_float(pz_launch *l, const char *name, double v) {
    pz_error err;
    assert_ok(pz_node_set_float(node_of(l), name, v, &err), &err);
}
void rig_attr_str(pz_launch *l, const char *name, const char *v) {
    pz_error err;
    assert_ok(pz_node_set_str(node_of(l), name, v, &err), &err);
}

/* The places and the room behind the last one. */
static size_t watched(const rig *r) {
    return (size_t)r->plan.arena_bytes + GUARD;
}

static void check_untouched(rig *r) {
    for (int i = 0; i < r->plan.places.n; i++) {
        const pz_place *p = &r->plan.places.at[i];
        if (i == p->root && r->written[i]) memcpy(r->before + p->offset, r->arena + p->offset, (size_t)p->bytes);
    }
    if (memcmp(r->before, r->arena, watched(r)) == 0) return;
    for (size_t i = 0; i < watched(r); i++)
        if (r->before[i] != r->arena[i]) fail_msg("byte %zu outside the outputs was written", i);
}

static pz_status run(rig *r, pz_error *err) {
    memcpy(r->before, r->arena, watched(r));
    pz_run_args args = {.arena = r->arena, .cache = r->cache.data ? &r->cache : NULL, .launch_ns = r->launch_ns};
    return r->api->run(r->b, &r->plan, &args, err);
}

pz_status rig_try(rig *r, pz_error *err) {
    pz_status st = run(r, err);
    if (st != PZ_OK) assert_memory_equal(r->before, r->arena, watched(r));
    return st;
}

void rig_run(rig *r) {
    pz_error err;
    assert_ok(rig_try(r, &err), &err);
    check_untouched(r);
}

/* ---- ranks ---- */
typedef struct ranks_run {
    rig *const *rigs;
    int missing;
    pz_status *st;
    pz_error *err;
} ranks_run;

static void run_rank(void *arg, int rank) {
    ranks_run *r = arg;
    if (rank != r->missing) r->st[rank] = run(r->rigs[rank], &r->err[rank]);
}

void rigs_try(rig *const *rigs, int n, int missing, pz_status *st, pz_error *err) {
    pz_error failed;
    pz_crew *crew;
    ranks_run r = {.rigs = rigs, .missing = missing, .st = st, .err = err};
    assert_ok(pz_crew_new(n, &crew, &failed), &failed);
    assert_ok(pz_crew_run(crew, run_rank, &r, &failed), &failed);
    pz_crew_free(crew);
}

void rigs_run(rig *const *rigs, int n) {
    pz_status st[PZ_MAX_RANKS];
    pz_error err[PZ_MAX_RANKS];
    rigs_try(rigs, n, -1, st, err);
    for (int r = 0; r < n; r++) {
        assert_ok(st[r], &err[r]);
        check_untouched(rigs[r]);
    }
}

float *rig_read(rig *r, int place) {
    pz_error err;
    int64_t cols = r->plan.places.at[place].type.dim[1];
    float *dst = pz_calloc((size_t)(r->plan.m * cols), sizeof *dst);
    int *rows = pz_calloc((size_t)r->plan.m, sizeof *rows);
    assert_true(dst && rows);
    for (int i = 0; i < r->plan.m; i++) rows[i] = i;
    pz_run_args args = {.arena = r->arena};
    assert_ok(r->api->read(r->b, &r->plan, &args, place, rows, r->plan.m, dst, &err), &err);
    pz_free(rows);
    return dst;
}

/* ---- numbers ---- */
float rnd(uint64_t *state) {
    double u = 2 * pz_rng_unit(state) - 1;
    return (float)ldexp(u, -(int)(pz_rng_next(state) % 4));
}

float *rnd_array(uint64_t *state, int64_t n) {
    float *x = pz_calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = rnd(state);
    return x;
}

int rnd_int(uint64_t *state, int lo, int hi) {
    return lo + (int)(pz_rng_next(state) % (uint64_t)(hi - lo + 1));
}

float norm_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return pz_fixed_norm(sum);
}

void support_assert_close(const float *got, const double *want, const double *tolerance, int64_t n, const char *file,
                          int line) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i]) ? isnan(got[i]) : fabs((double)got[i] - want[i]) <= tolerance[i]) continue;
        char text[160];
        snprintf(text, sizeof text, "element %lld is %.9g, expected %.9g within %.3g", (long long)i, (double)got[i],
                 want[i], tolerance[i]);
        print_error("%s\n", text);
        _fail(file, line);
    }
}
