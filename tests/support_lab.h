/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of the GPU kernels, written over a lab: where memory lies, what runs the per-element work of
 * support_elem.h, and the kernels under test. On the GPU's lab they test the kernels; on the host's, whose kernels are
 * fakes, test_lab.c shows that right ones pass and that each kind of wrong one is found. */
#ifndef PZ_TEST_SUPPORT_LAB_H
#define PZ_TEST_SUPPORT_LAB_H

#include "support.h"

#include "base/rng.h"
#include "support_elem.h"

typedef struct lab lab;
typedef void (*lab_record_fn)(void *arg, void *stream);
typedef struct lab_graph lab_graph;

/* Every function but those of the kernels under test ends the test where it cannot do its work. */
struct lab {
    bool small; /* small shapes, for sanitizers and fakes */
    bool few;   /* and no more data than it takes to launch every kernel in every way: for sanitizers */
    bool quiet; /* a fault is expected: no word about it, and nothing more to do once it is found */
    long faults;
    void *(*alloc)(lab *l, size_t bytes);
    void (*release)(lab *l, void *p);
    void (*put)(lab *l, void *dst, const void *src, size_t bytes);
    void (*get)(lab *l, void *dst, const void *src, size_t bytes); /* after all work of all streams */
    void (*each)(lab *l, lab_work work, const void *params, int64_t n, void *stream);
    /* Waits for the stream and reports its errors; a watchdog of the program ends what hangs. */
    void (*sync)(lab *l, void *stream, const char *what);
    void *(*stream)(lab *l);
    void (*stream_end)(lab *l, void *stream);
    /* Captures what record(arg, stream) launches. */
    lab_graph *(*capture)(lab *l, lab_record_fn record, void *arg, void *stream);
    void (*replay)(lab *l, lab_graph *g, void *stream);
    void (*graph_end)(lab *l, lab_graph *g);
    /* Occupies all but a few multiprocessors for about that long. */
    void (*occupy)(lab *l, int microseconds, void *stream);
    pz_status (*gemm_workspace)(const pz_gemm_args *args, size_t *bytes, pz_error *err);
    pz_status (*gemm)(const pz_gemm_args *args, pz_error *err);
    pz_status (*weight_norms)(const void *w, int64_t ldw, int n, int k, float *w_norm, void *stream, pz_error *err);
    pz_status (*rms_norm)(const pz_norm_args *args, pz_error *err);
};

/* A lab in host memory without kernels under test; capture keeps record and arg, replay calls them again. */
void lab_host(lab *l);

/* Counts a fault and prints it, the first few of a test. */
static inline bool lab_done(const lab *l) {
    return l->quiet && l->faults;
}
void lab_fault(lab *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* lab_fill(l, &(elem_fill){...}, n, stream), and so on for every work. */
#define LAB_CALL(name, params)                                                 \
    static inline void lab_##name(lab *l, params p, int64_t n, void *stream) { \
        l->each(l, LAB_##name, &p, n, stream);                                 \
    }
ELEM_WORKS(LAB_CALL)
#undef LAB_CALL

void lab_poison(lab *l, void *dst, size_t bytes, uint32_t word, void *stream); /* bytes: a multiple of 4 */
void lab_clear(lab *l, void *dst, size_t bytes, void *stream);
elem_result *lab_result(lab *l); /* in the lab's memory, empty; by release */
void lab_result_clear(lab *l, elem_result *r);
elem_result lab_result_get(lab *l, const elem_result *r);
/* What untouched memory is filled with: NaN, and large numbers (1e30 as bf16 and f32). */
extern const uint32_t lab_patterns[2];

static inline int lab_int(uint64_t *state, int lo, int hi) {
    return lo + (int)(pz_rng_next(state) % (uint64_t)(hi - lo + 1));
}

/* ---- GEMM ---- */
typedef struct gemm_poke {
    int in_w, row, col; /* of x, or of w */
    uint16_t bits;
} gemm_poke;

typedef struct gemm_spec {
    int m, n, k;
    int pad_x, pad_w, pad_y; /* elements beyond a row; x and w: multiples of 8 */
    int shift_y;             /* y begins so many times 4 bytes after a multiple of 256 */
    elem_data data_x, data_w;
    int exponent_x, exponent_w;
    int exact; /* the sums are exact in f32 and FIXED (and in bf16 for TERNARY) */
    uint64_t seed;
    const gemm_poke *pokes;
    int n_pokes;
} gemm_spec;

enum { GEMM_GUARD = 1024 }; /* bytes around results that nobody may touch */

/* Operands, reference and room for results of one problem. */
typedef struct gemm_problem {
    lab *l;
    gemm_spec spec;
    int64_t ldx, ldw, ldy;
    uint16_t *x, *w;
    float *x_norm, *w_norm;
    double *sum, *abs, *squares;
    uint8_t *y; /* guard, m rows, guard */
    size_t y_bytes, y_begin;
    uint8_t *workspace;
    size_t workspace_bytes;
    elem_result *outside, *wrong;
} gemm_problem;

typedef struct gemm_variant {
    pz_accum accum;
    pz_strategy strategy;
    pz_gemm_config config;
} gemm_variant;

typedef enum gemm_outcome { GEMM_RIGHT, GEMM_REFUSED, GEMM_WRONG } gemm_outcome;

void gemm_problem_open(gemm_problem *p, lab *l, const gemm_spec *spec);
void gemm_problem_close(gemm_problem *p);
pz_gemm_args gemm_args(const gemm_problem *p, const gemm_variant *v);
/* Room for `bytes`, zeroed, and a guard after it. */
void gemm_make_workspace(gemm_problem *p, size_t bytes);
/* Runs a variant twice on poisoned memory, with one workspace; checks results, everything around them, and that a
 * refusal has a message and launches nothing. */
gemm_outcome gemm_try(gemm_problem *p, const gemm_variant *v);
/* Random geometry of a family, sensible or not. */
pz_gemm_config gemm_random_config(uint64_t *state, pz_gemm_family family);
/* Whether a build or an architecture has no kernels of GROUP, WIDE or CUBLASLT at all: they then refuse the simplest
 * case as unsupported. Says so. */
bool gemm_family_absent(lab *l, pz_gemm_family family);
/* Values of k that FIXED sums in f32 before it rounds. */
int64_t gemm_unit(const gemm_spec *s);
void gemm_variant_text(const gemm_variant *v, char text[160]);

/* Suites; each counts its faults in the lab. */
void suite_gemm_random(lab *l);    /* random shapes and strides, everything against float64 */
void suite_gemm_exact(lab *l);     /* data without rounding: every bit, and FIXED's definition */
void suite_gemm_special(lab *l);   /* NaN, Inf, zero rows, denormals, extreme norms */
void suite_gemm_arguments(lab *l); /* what must be refused */
void suite_gemm_extremes(lab *l);  /* geometries as large and as small as an int can be */
void suite_weight_norms(lab *l);
void suite_fixed_repeat(lab *l);  /* same bits over 1000 runs */
void suite_fixed_configs(lab *l); /* same bits in every geometry, family and strategy */
void suite_fixed_batches(lab *l); /* same bits alone and in every batch up to 128 */
void suite_fixed_sums(lab *l);    /* same bits where sums need more shared memory than x and w */
void suite_fixed_edges(lab *l);   /* same bits with few slots, odd K, and on both sides of a longer unit */
void suite_norm_random(lab *l);
void suite_norm_special(lab *l);
void suite_norm_arguments(lab *l);

/* ---- chains of norms and GEMMs, as decode layers have them ---- */
typedef struct chain_options {
    int m, layers, kimi /* shapes of Kimi-K2 at TP4, else small ones */, shared /* layers share their buffers */;
    pz_strategy strategy;
    int dependent, late;
    int drop_rider; /* bit 0: of the first norm of a layer, bit 1: of the second: the negative control */
    uint64_t seed;
} chain_options;
typedef struct chain chain;
chain *chain_open(lab *l, const chain_options *o);
void chain_close(chain *c);
/* Launches the chain once in `stream`: next input, layers, comparison. A lab_record_fn. */
void chain_launch(void *arg, void *stream);
/* Another strategy on the same buffers and expectations. */
void chain_set(chain *c, pz_strategy strategy, int dependent, int late, int drop_rider);
/* After all work: how many elements were wrong in all launches since the last call, and how many launches there were.
 */
elem_result chain_result(chain *c, unsigned long long *launches);

void suite_chain_replay(lab *l, const chain_options *o, int replays); /* one captured graph */
void suite_chain_streams(lab *l, int replays);                        /* two streams, own buffers */
void suite_chain_alternate(lab *l, int replays);                      /* two graphs take turns */
void suite_chain_other_stream(lab *l, int replays);                   /* warm-up, capture and replay on three streams */
void suite_chain_occupied(lab *l, int replays);                       /* beside a kernel that holds most of the GPU */
void suite_chain_control(lab *l);                                     /* without riders the result must be wrong */

#endif
