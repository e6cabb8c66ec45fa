/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of norms and GEMMs, as the decode layers of a latent attention model have them. Every launch but the first
 * reads what the one before it wrote, riders zero buffers that GEMMs added into a moment ago, inputs change from launch
 * to launch, and every value of every layer is compared with what the same layers give one by one and without riders.
 */
#include "support_lab.h"

enum { INPUTS = 6, GEMMS = 4, NORMS = 4, MAX_LAYERS = 16 };

/* Widths are multiples of 64, so that no gaps lie between the outputs that one rider zeroes. A layer: x1, r = norm(x +
 * r), rider over qkv, q_b and o; qkv = x1 W; xq = norm(qkv[: q]); q_b = xq W; xo = norm(q_b[: o_in]); o = xo W; x2, r =
 * norm(o + r), rider over gate; gate = x2 W. x2 is x of the next layer. */
typedef struct chain_shape {
    int hidden, q, o_in, n[GEMMS], split[GEMMS];
} chain_shape;
static const chain_shape kimi = {7168, 1536, 2048, {2112, 3072, 7168, 384}, {8, 3, 2, 16}},
                         little = {256, 144, 96, {192, 128, 256, 64}, {2, 2, 1, 2}};

typedef struct chain_layer {
    uint16_t *w[GEMMS];
    float *w_norm[GEMMS], *norm[NORMS]; /* norm: weights of the norms */
    void *workspace[GEMMS];
    size_t workspace_bytes[GEMMS];
    /* in the arena */
    uint8_t *y[GEMMS], *x[NORMS], *x_norm[NORMS];
} chain_layer;

struct chain {
    lab *l;
    chain_options o;
    const chain_shape *shape;
    chain_layer layers[MAX_LAYERS];
    uint8_t *arena, *input, *r;
    int64_t used;
    uint32_t *inputs, *expected;
    unsigned long long *counter, launches;
    elem_result *result;
};

/* Input of each GEMM, columns. */
static int gemm_k(const chain_shape *s, int i) {
    const int k[GEMMS] = {s->hidden, s->q, s->o_in, s->hidden};
    return k[i];
}

static int64_t place(chain *c, int64_t bytes) {
    int64_t at = c->used;
    c->used += (bytes + 255) / 256 * 256;
    return at;
}

/* Lays out all values; twice, first to learn the size. The three outputs that one rider zeroes follow each other. */
static void lay_out(chain *c) {
    const chain_shape *s = c->shape;
    int64_t m = c->o.m;
    c->used = 0;
    c->input = c->arena + place(c, m * s->hidden * 2);
    c->r = c->arena + place(c, m * s->hidden * 2);
    for (int i = 0; i < c->o.layers; i++) {
        chain_layer *y = &c->layers[i];
        if (c->o.shared && i > 0) {
            memcpy(y->y, c->layers[0].y, sizeof y->y);
            memcpy(y->x, c->layers[0].x, sizeof y->x);
            memcpy(y->x_norm, c->layers[0].x_norm, sizeof y->x_norm);
            continue;
        }
        for (int g = 0; g < GEMMS; g++) y->y[g] = c->arena + place(c, m * s->n[g] * 4);
        for (int n = 0; n < NORMS; n++) {
            y->x[n] = c->arena + place(c, m * gemm_k(s, n) * 2);
            y->x_norm[n] = c->arena + place(c, m * 4);
        }
    }
}

static void make_weights(chain *c) {
    lab *l = c->l;
    const chain_shape *s = c->shape;
    for (int i = 0; i < c->o.layers; i++)
        for (int g = 0; g < GEMMS; g++) {
            int64_t n = s->n[g], k = gemm_k(s, g);
            chain_layer *y = &c->layers[i];
            y->w[g] = l->alloc(l, (size_t)(n * k) * 2);
            y->w_norm[g] = l->alloc(l, (size_t)n * 4);
            y->norm[g] = l->alloc(l, (size_t)k * 4);
            uint64_t seed = c->o.seed * 1000 + (uint64_t)(i * GEMMS + g);
            lab_fill(l, (elem_fill){y->w[g], k, k, PZ_ELEM_BF16, DATA_UNIFORM, seed, 0}, n * k, NULL);
            lab_norms(l, (elem_norms){y->w[g], k, k, y->w_norm[g]}, n, NULL);
            lab_fill(l, (elem_fill){y->norm[g], k, k, PZ_ELEM_F32, DATA_UNIFORM, seed + 500, 0}, k, NULL);
        }
}

/* ---- launches ---- */
static void must(const chain *c, pz_status st, const pz_error *err, const char *what) {
    if (st != PZ_OK) lab_fault(c->l, "chain: %s: %s", what, err->msg);
}

static pz_gemm_args gemm_of(const chain *c, int layer, int g, void *stream) {
    const chain_shape *s = c->shape;
    const chain_layer *y = &c->layers[layer];
    bool split = c->o.strategy != PZ_ZERO_NONE && s->split[g] > 1;
    pz_gemm_args a = {.size = sizeof a,
                      .x = y->x[g],
                      .w = y->w[g],
                      .ldx = gemm_k(s, g),
                      .ldw = gemm_k(s, g),
                      .y = y->y[g],
                      .ldy = s->n[g],
                      .m = c->o.m,
                      .n = s->n[g],
                      .k = gemm_k(s, g),
                      .accum = PZ_ACCUM_FIXED,
                      .x_norm = (const float *)(void *)y->x_norm[g],
                      .w_norm = y->w_norm[g],
                      .strategy = c->o.strategy,
                      .workspace = y->workspace[g],
                      .dependent = c->o.dependent,
                      .stream = stream};
    if (split) a.config = (pz_gemm_config){16, s->split[g], PZ_GEMM_SKINNY, g == 0 ? 2 : 1, 0, 0};
    return a;
}

static void launch_gemm(const chain *c, int layer, int g, void *stream) {
    pz_error err;
    pz_gemm_args a = gemm_of(c, layer, g, stream);
    must(c, c->l->gemm(&a, &err), &err, "gemm");
}

/* Norm number n of a layer, which makes the input of GEMM number n. */
static void launch_norm(const chain *c, int layer, int n, void *stream) {
    const chain_shape *s = c->shape;
    const chain_layer *y = &c->layers[layer];
    pz_error err;
    int hidden = gemm_k(s, n);
    pz_norm_args a = {.size = sizeof a,
                      .w = y->norm[n],
                      .eps = 1e-6f,
                      .y = {y->x[n], hidden, PZ_ELEM_BF16, NULL, NULL},
                      .x_norm = (float *)(void *)y->x_norm[n],
                      .m = c->o.m,
                      .hidden = hidden,
                      .late = c->o.late,
                      .dependent = c->o.dependent,
                      .stream = stream};
    if (n == 0)
        a.x = (pz_matrix){layer ? c->layers[layer - 1].x[3] : c->input, hidden, PZ_ELEM_BF16, NULL, NULL};
    else /* the output of the GEMM before, its first columns */
        a.x = (pz_matrix){y->y[n - 1], s->n[n - 1], PZ_ELEM_FIXED, (const float *)(void *)y->x_norm[n - 1],
                          y->w_norm[n - 1]};
    if (n == 0 || n == 3) {
        a.r = (pz_matrix){c->r, hidden, PZ_ELEM_BF16, NULL, NULL};
        if (layer || n) a.res = a.r;
        if (c->o.strategy == PZ_ZERO_PREZERO && !(c->o.drop_rider & (n ? 2 : 1))) {
            a.zero = n ? y->y[3] : y->y[0];
            a.zero_bytes = n ? (size_t)c->o.m * (size_t)s->n[3] * 4 : (size_t)(y->y[3] - y->y[0]);
        }
    }
    must(c, c->l->rms_norm(&a, &err), &err, "rms_norm");
}

static void launch_layers(const chain *c, void *stream) {
    int64_t words = (int64_t)c->o.m * c->shape->hidden / 2;
    lab_advance(c->l, (elem_advance){c->inputs, (uint32_t *)(void *)c->input, words, c->counter, INPUTS}, words,
                stream);
    for (int i = 0; i < c->o.layers; i++)
        for (int g = 0; g < GEMMS; g++) {
            launch_norm(c, i, g, stream);
            launch_gemm(c, i, g, stream);
        }
}

void chain_launch(void *arg, void *stream) {
    chain *c = arg;
    launch_layers(c, stream);
    lab_expect(
        c->l,
        (elem_expect){(const uint32_t *)(void *)c->arena, c->expected, c->used / 4, c->counter, INPUTS, c->result},
        c->used / 4, stream);
    lab_tick(c->l, (elem_tick){c->counter}, 1, stream);
}

/* ---- open, close ---- */
static void make_workspaces(chain *c) {
    for (int i = 0; i < c->o.layers; i++)
        for (int g = 0; g < GEMMS; g++) {
            chain_layer *y = &c->layers[i];
            pz_error err;
            size_t bytes = 0;
            pz_gemm_args a = gemm_of(c, i, g, NULL);
            must(c, c->l->gemm_workspace(&a, &bytes, &err), &err, "workspace");
            if (bytes > y->workspace_bytes[g]) {
                if (y->workspace[g]) c->l->release(c->l, y->workspace[g]);
                y->workspace[g] = NULL;
            }
            if (!bytes) continue;
            if (!y->workspace[g]) y->workspace[g] = c->l->alloc(c->l, bytes);
            lab_clear(c->l, y->workspace[g], bytes, NULL);
            y->workspace_bytes[g] = bytes;
        }
}

/* What is expected: the layers one after the other, nothing split, no rider, nothing that starts early. Poison lies in
 * the gaps between values too, so that all of the arena can be compared. */
static void make_expected(chain *c) {
    lab *l = c->l;
    chain_options o = c->o;
    chain_set(c, PZ_ZERO_NONE, 0, 0, 0);
    for (unsigned i = 0; i < INPUTS; i++) {
        unsigned long long counter = i;
        l->put(l, c->counter, &counter, sizeof counter);
        lab_poison(l, c->arena, (size_t)c->used, lab_patterns[0], NULL);
        launch_layers(c, NULL);
        l->sync(l, NULL, "expected values of a chain");
        uint32_t *host = pz_calloc((size_t)c->used, 1);
        assert_non_null(host);
        l->get(l, host, c->arena, (size_t)c->used);
        l->put(l, c->expected + (int64_t)i * (c->used / 4), host, (size_t)c->used);
        pz_free(host);
    }
    chain_set(c, o.strategy, o.dependent, o.late, o.drop_rider);
}

void chain_set(chain *c, pz_strategy strategy, int dependent, int late, int drop_rider) {
    unsigned long long zero = 0;
    c->o.strategy = strategy;
    c->o.dependent = dependent;
    c->o.late = late;
    c->o.drop_rider = drop_rider;
    make_workspaces(c);
    lab_poison(c->l, c->arena, (size_t)c->used, lab_patterns[0], NULL);
    c->l->put(c->l, c->counter, &zero, sizeof zero);
    c->launches = 0;
    lab_result_clear(c->l, c->result);
}

chain *chain_open(lab *l, const chain_options *o) {
    chain *c = pz_calloc(1, sizeof *c);
    assert_non_null(c);
    assert_true(o->layers >= 2 && o->layers <= MAX_LAYERS);
    c->l = l;
    c->o = *o;
    c->shape = o->kimi ? &kimi : &little;
    lay_out(c);
    c->arena = l->alloc(l, (size_t)c->used);
    lay_out(c);
    make_weights(c);
    int64_t input = (int64_t)o->m * c->shape->hidden;
    c->inputs = l->alloc(l, (size_t)(INPUTS * input) * 2);
    lab_fill(l, (elem_fill){c->inputs, input, input, PZ_ELEM_BF16, DATA_UNIFORM, o->seed + 7, 0}, INPUTS * input, NULL);
    c->expected = l->alloc(l, (size_t)(INPUTS * c->used));
    c->counter = l->alloc(l, sizeof *c->counter);
    c->result = lab_result(l);
    make_expected(c);
    return c;
}

void chain_close(chain *c) {
    lab *l = c->l;
    for (int i = 0; i < c->o.layers; i++)
        for (int g = 0; g < GEMMS; g++) {
            chain_layer *y = &c->layers[i];
            l->release(l, y->w[g]);
            l->release(l, y->w_norm[g]);
            l->release(l, y->norm[g]);
            if (y->workspace[g]) l->release(l, y->workspace[g]);
        }
    void *all[] = {c->arena, c->inputs, c->expected, c->counter, c->result};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) l->release(l, all[i]);
    pz_free(c);
}

elem_result chain_result(chain *c, unsigned long long *launches) {
    elem_result r = lab_result_get(c->l, c->result);
    unsigned long long counter;
    c->l->get(c->l, &counter, c->counter, sizeof counter);
    *launches = counter - c->launches;
    c->launches = counter;
    lab_result_clear(c->l, c->result);
    return r;
}

/* ---- suites ---- */
#define STRATEGY_TEXT(id, text, adds) text,
static const char *const strategy_text[] = {PZ_STRATEGY_TABLE(STRATEGY_TEXT)};

static void check(chain *c, unsigned long long launches, const char *what) {
    unsigned long long got;
    elem_result r = chain_result(c, &got);
    if (got != launches)
        lab_fault(c->l, "%s, %s: %llu launches of %llu ran", what, strategy_text[c->o.strategy], got, launches);
    if (r.wrong)
        lab_fault(c->l, "%s, m %d, %s%s%s: %llu wrong words in %llu launches, the first at word %llu of %lld", what,
                  c->o.m, strategy_text[c->o.strategy], c->o.dependent ? ", dependent" : "", c->o.late ? ", late" : "",
                  r.wrong, got, r.first, (long long)c->used / 4);
}

static void replay(chain *c, lab_graph *g, int replays, void *stream) {
    for (int i = 0; i < replays; i++) c->l->replay(c->l, g, stream);
}

void suite_chain_replay(lab *l, const chain_options *o, int replays) {
    chain *c = chain_open(l, o);
    void *stream = l->stream(l);
    chain_launch(c, stream);
    l->sync(l, stream, "warm-up of a chain");
    check(c, 1, "first launch");
    lab_graph *g = l->capture(l, chain_launch, c, stream);
    replay(c, g, replays, stream);
    l->sync(l, stream, "replays of a chain");
    check(c, (unsigned long long)replays, "replays");
    l->graph_end(l, g);
    l->stream_end(l, stream);
    chain_close(c);
}

static chain_options options_of(const lab *l, pz_strategy strategy, int m, uint64_t seed) {
    return (chain_options){
        .m = m, .layers = l->small ? 3 : 8, .kimi = !l->small, .strategy = strategy, .dependent = 1, .seed = seed};
}

void suite_chain_streams(lab *l, int replays) {
    enum { STREAMS = 2 };
    chain *c[STREAMS];
    void *stream[STREAMS];
    lab_graph *g[STREAMS];
    for (int pair = 0; pair < 2; pair++) {
        for (int i = 0; i < STREAMS; i++) {
            chain_options o = options_of(l,
                                         pair == 0 ? PZ_ZERO_PREZERO
                                         : i       ? PZ_ZERO_SELF
                                                   : PZ_ZERO_TICKET,
                                         2 + 3 * i, 21 + (uint64_t)i);
            c[i] = chain_open(l, &o);
            stream[i] = l->stream(l);
            g[i] = l->capture(l, chain_launch, c[i], stream[i]);
        }
        for (int r = 0; r < replays; r++)
            for (int i = 0; i < STREAMS; i++) l->replay(l, g[i], stream[i]);
        for (int i = 0; i < STREAMS; i++) {
            l->sync(l, stream[i], "two streams");
            check(c[i], (unsigned long long)replays, "two streams");
            l->graph_end(l, g[i]);
            l->stream_end(l, stream[i]);
            chain_close(c[i]);
        }
    }
}

void suite_chain_alternate(lab *l, int replays) {
    chain_options o = options_of(l, PZ_ZERO_PREZERO, 5, 31);
    o.shared = 1;
    chain *c = chain_open(l, &o);
    void *stream = l->stream(l);
    lab_graph *first = l->capture(l, chain_launch, c, stream);
    chain_set(c, PZ_ZERO_SELF, 1, 0, 0);
    lab_graph *second = l->capture(l, chain_launch, c, stream);
    for (int i = 0; i < replays; i++) l->replay(l, i & 1 ? second : first, stream);
    l->sync(l, stream, "two graphs");
    check(c, (unsigned long long)replays, "two graphs in turn");
    l->graph_end(l, first);
    l->graph_end(l, second);
    l->stream_end(l, stream);
    chain_close(c);
}

void suite_chain_other_stream(lab *l, int replays) {
    chain_options o = options_of(l, PZ_ZERO_PREZERO, 7, 41);
    o.late = 1;
    chain *c = chain_open(l, &o);
    void *warm = l->stream(l), *capture = l->stream(l), *run = l->stream(l);
    chain_launch(c, warm);
    l->sync(l, warm, "warm-up on a stream of its own");
    lab_graph *g = l->capture(l, chain_launch, c, capture);
    replay(c, g, replays, run);
    l->sync(l, run, "replays on a third stream");
    check(c, (unsigned long long)replays + 1, "captured on another stream");
    l->graph_end(l, g);
    l->stream_end(l, warm);
    l->stream_end(l, capture);
    l->stream_end(l, run);
    chain_close(c);
}

void suite_chain_occupied(lab *l, int replays) {
    static const pz_strategy strategies[] = {PZ_ZERO_PREZERO, PZ_ZERO_SELF, PZ_ZERO_TICKET, PZ_ZERO_REDUCE};
    chain_options o = options_of(l, PZ_ZERO_PREZERO, 4, 51);
    chain *c = chain_open(l, &o);
    void *stream = l->stream(l), *other = l->stream(l);
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++) {
        chain_set(c, strategies[s], 1, 0, 0);
        l->sync(l, NULL, "poison");
        lab_graph *g = l->capture(l, chain_launch, c, stream);
        l->occupy(l, l->small ? 2000 : 200000, other);
        replay(c, g, replays, stream);
        l->sync(l, stream, "replays beside a kernel that holds most of the GPU");
        l->sync(l, other, "a kernel that holds most of the GPU");
        check(c, (unsigned long long)replays, "beside a kernel that holds most of the GPU");
        l->graph_end(l, g);
    }
    l->stream_end(l, stream);
    l->stream_end(l, other);
    chain_close(c);
}

/* The negative control: GEMMs that rely on zeros which no rider writes must give wrong results. */
void suite_chain_control(lab *l) {
    chain_options o = options_of(l, PZ_ZERO_PREZERO, 4, 61);
    chain *c = chain_open(l, &o);
    void *stream = l->stream(l);
    for (int drop = 0; drop < 4; drop++) {
        unsigned long long launches;
        chain_set(c, PZ_ZERO_PREZERO, 1, 0, drop);
        l->sync(l, NULL, "poison");
        lab_graph *g = l->capture(l, chain_launch, c, stream);
        replay(c, g, 20, stream);
        l->sync(l, stream, "negative control");
        elem_result r = chain_result(c, &launches);
        if ((r.wrong == 0) != (drop == 0) || launches != 20)
            lab_fault(l, "riders %d removed: %llu wrong words in %llu launches", drop, r.wrong, launches);
        l->graph_end(l, g);
    }
    l->stream_end(l, stream);
    chain_close(c);
}
