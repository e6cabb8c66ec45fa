/* SPDX-License-Identifier: Apache-2.0 */
#include "support_lab.h"

#include <stdio.h>

#include "base/par.h"

const uint32_t lab_patterns[2] = {0xffffffffu, 0x71497149u};

/* ---- the host's lab ---- */
static void *host_alloc(lab *l, size_t bytes) {
    (void)l;
    void *p = pz_aligned_calloc(bytes);
    assert_non_null(p);
    return p;
}

static void host_release(lab *l, void *p) {
    (void)l;
    pz_free(p);
}

static void host_copy(lab *l, void *dst, const void *src, size_t bytes) {
    (void)l;
    memcpy(dst, src, bytes);
}

typedef struct each_job {
    lab_work work;
    const void *params;
    int64_t n;
} each_job;

static void each_region(void *arg, int tid, int nthreads) {
    const each_job *j = arg;
    int64_t begin = j->n * tid / nthreads, end = j->n * (tid + 1) / nthreads;
    switch (j->work) {
#define LAB_EACH(name, type)                                                                \
    case LAB_##name:                                                                        \
        for (int64_t i = begin; i < end; i++) elem_##name##_at((const type *)j->params, i); \
        break;
        ELEM_WORKS(LAB_EACH)
#undef LAB_EACH
    }
}

static void host_each(lab *l, lab_work work, const void *params, int64_t n, void *stream) {
    (void)l, (void)stream;
    each_job j = {work, params, n};
    pz_par_run(n < 4096 ? 1 : pz_par_cpus(), each_region, &j);
}

static void host_sync(lab *l, void *stream, const char *what) {
    (void)l, (void)stream, (void)what;
}

static void *host_stream(lab *l) {
    (void)l;
    return NULL;
}

static void host_stream_end(lab *l, void *stream) {
    (void)l, (void)stream;
}

struct lab_graph {
    lab_record_fn record;
    void *arg;
};

static lab_graph *host_capture(lab *l, lab_record_fn record, void *arg, void *stream) {
    (void)l, (void)stream;
    lab_graph *g = pz_calloc(1, sizeof *g);
    assert_non_null(g);
    *g = (lab_graph){record, arg};
    return g;
}

static void host_replay(lab *l, lab_graph *g, void *stream) {
    (void)l;
    g->record(g->arg, stream);
}

static void host_graph_end(lab *l, lab_graph *g) {
    (void)l;
    pz_free(g);
}

static void host_occupy(lab *l, int microseconds, void *stream) {
    (void)l, (void)microseconds, (void)stream;
}

void lab_host(lab *l) {
    *l = (lab){.small = true,
               .alloc = host_alloc,
               .release = host_release,
               .put = host_copy,
               .get = host_copy,
               .each = host_each,
               .sync = host_sync,
               .stream = host_stream,
               .stream_end = host_stream_end,
               .capture = host_capture,
               .replay = host_replay,
               .graph_end = host_graph_end,
               .occupy = host_occupy};
}

/* ---- of every lab ---- */
void lab_fault(lab *l, const char *fmt, ...) {
    if (l->faults++ >= 20 || l->quiet) return;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    print_error("%s\n", text);
}

void lab_poison(lab *l, void *dst, size_t bytes, uint32_t word, void *stream) {
    lab_pattern(l, (elem_pattern){dst, word}, (int64_t)(bytes / 4), stream);
}

void lab_clear(lab *l, void *dst, size_t bytes, void *stream) {
    if (bytes) lab_zero(l, (elem_zero){dst, (int64_t)bytes, (int64_t)bytes}, (int64_t)bytes, stream);
}

void lab_result_clear(lab *l, elem_result *r) {
    elem_result empty = {.first = ~0ull};
    l->put(l, r, &empty, sizeof empty);
}

elem_result *lab_result(lab *l) {
    elem_result *r = l->alloc(l, sizeof *r);
    lab_result_clear(l, r);
    return r;
}

elem_result lab_result_get(lab *l, const elem_result *r) {
    elem_result got;
    l->get(l, &got, r, sizeof got);
    return got;
}
