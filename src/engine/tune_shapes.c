/* SPDX-License-Identifier: Apache-2.0 */
/* What is tuned, and what came of it. */
#include <stdio.h>

#include "engine/tune.h"

static int before(const pz_gemm_shape *a, const pz_gemm_shape *b) {
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    if (a->k != b->k) return a->k < b->k ? -1 : 1;
    return (a->accum > b->accum) - (a->accum < b->accum);
}

pz_status pz_tune_add_shape(pz_gemm_shapes *shapes, const pz_gemm_shape *shape, pz_error *err) {
    int at = 0;
    while (at < shapes->n && before(&shapes->at[at], shape) < 0) at++;
    if (at < shapes->n && before(&shapes->at[at], shape) == 0) return PZ_OK;
    PZ_TRY(pz_push(shapes, *shape, err));
    memmove(&shapes->at[at + 1], &shapes->at[at], (size_t)(shapes->n - 1 - at) * sizeof *shape);
    shapes->at[at] = *shape;
    return PZ_OK;
}

static pz_status add_node(const pz_node *n, pz_gemm_shapes *out, int *hidden, pz_error *err) {
    const pz_weight *w = NULL;
    for (int i = 0; i < n->args.n && !w; i++)
        if (n->args.at[i].kind == PZ_ARG_WEIGHT) w = n->args.at[i].weight;
    if (pz_node_has(n, PZ_TRAIT_DONOR) && w && !*hidden && w->type.dim[0] <= INT32_MAX) *hidden = (int)w->type.dim[0];
    if (n->op != PZ_OP_GEMM || !w || w->type.rank != 2) return PZ_OK;
    /* The kernels read bf16, whatever the checkpoint has. */
    pz_gemm_shape s = {.n = w->type.dim[0], .k = w->type.dim[1], .weight = PZ_DT_BF16};
    if (s.n < 1 || s.k < 1 || s.n > INT32_MAX || s.k > INT32_MAX || s.k % 16) return PZ_OK;
    if (!pz_accum_from_text(pz_node_str(n, "accum"), &s.accum)) return PZ_OK;
    return pz_tune_add_shape(out, &s, err);
}

pz_status pz_tune_shapes(const pz_graph *g, pz_gemm_shapes *out, int *hidden, pz_error *err) {
    *hidden = 0;
    for (int f = 0; f < g->funcs.n; f++)
        for (int i = 0; i < g->funcs.at[f]->nodes.n; i++)
            PZ_TRY(add_node(g->funcs.at[f]->nodes.at[i], out, hidden, err));
    return PZ_OK;
}

pz_status pz_tune_parse_shapes(const char *text, pz_accum accum, pz_gemm_shapes *out, pz_error *err) {
    for (const char *at = text;;) {
        long long n = 0, k = 0;
        int used = 0;
        bool ok = sscanf(at, "%9lld,%9lld%n", &n, &k, &used) == 2 && (at[used] == ';' || !at[used]);
        if (!ok || n < 1 || k < 16 || k % 16)
            return pz_fail(
                err, PZ_E_INVAL,
                "shapes \"%.80s\": expected N,K separated by semicolons, as in 2112,7168;384,7168, with N from "
                "1 and K a multiple of 16",
                text);
        pz_gemm_shape s = {.n = n, .k = k, .weight = PZ_DT_BF16, .accum = accum};
        PZ_TRY(pz_tune_add_shape(out, &s, err));
        if (!at[used]) return PZ_OK;
        at += used + 1;
    }
}

/* ---- summary ---- */
static void add_choice(pz_str *b, const pz_gemm_choice *c) {
    pz_str geometry = {0};
    pz_gemm_config_text(&c->config, &geometry);
    pz_str_addf(b, "  %-8s %8.2f +- %4.2f  %-60s", pz_strategy_text(c->strategy), c->us, c->ci,
                geometry.s ? geometry.s : "");
    pz_str_free(&geometry);
}

static void add_row(pz_str *b, const pz_tuned_row *r) {
    const pz_gemm_shape *s = &r->shape;
    pz_str_addf(b, "%7lld x %-6lld %-5s %4d", (long long)s->n, (long long)s->k, pz_accum_text(s->accum), s->m);
    add_choice(b, &r->on);
    add_choice(b, &r->off);
    pz_str_addf(b, "  %+6.2f", r->on.us - r->off.us);
    if (r->cublaslt_us > 0) pz_str_addf(b, "  %8.2f  %5.2f", r->cublaslt_us, r->on.us / r->cublaslt_us);
    pz_str_add(b, "\n");
}

static void add_ranks(pz_str *b, const pz_tune_plan *p, const pz_tuned *table, const pz_tune_tally *tally) {
    if (p->ranks < 2) return;
    const pz_tuned_collective *c = pz_tuned_collective_exact(table, p->ranks, p->ranks_hidden);
    if (tally->no_ranks.msg[0])
        pz_str_addf(b, "collectives of %d ranks were not tuned: %s\n", p->ranks, tally->no_ranks.msg);
    if (c)
        pz_str_addf(
            b,
            "all-reduce + norm of %d columns over %d ranks: one step up to %d rows; %.2f us and %.4f us a row; a "
            "rider adds %.2f us\n",
            c->hidden, c->ranks, c->one_shot, c->ar_base, c->ar_row, c->rider);
}

static void add_tally(pz_str *b, const pz_tune_tally *t) {
    pz_str_addf(b, "%d rows measured (%d launches, %d more do not fit), %d rows kept", t->rows, t->measured, t->unfit,
                t->kept);
    if (t->failed) pz_str_addf(b, ", %d shapes and batches for which no launch works", t->failed);
    if (t->failure.msg[0]) pz_str_addf(b, " (%s)", t->failure.msg);
    pz_str_add(b, "\n");
    if (!t->wrong) return;
    const pz_gemm_shape *s = &t->wrong_shape;
    const pz_gemm_choice *c = &t->wrong_case.choice;
    pz_str_addf(b, "%d launches gave WRONG results and were refused; the first: n %lld, k %lld, m %d, %s, %s, ",
                t->wrong, (long long)s->n, (long long)s->k, s->m, pz_accum_text(s->accum),
                pz_strategy_text(c->strategy));
    pz_gemm_config_text(&c->config, b);
    pz_str_add(b, "\n");
}

pz_status pz_tune_summary(const pz_tune_plan *p, const pz_tuned *table, const pz_tune_tally *tally, char **out,
                          pz_error *err) {
    pz_str b = {0};
    pz_str_addf(&b, "%s (%d units), kernels %s; times in us with half of the 95 %% interval\n", table->device,
                table->units, table->kernels);
    pz_str_addf(&b, "%7s   %-6s %-5s %4s  %-86s  %-86s  %6s  %8s  %s\n", "N", "K", "accum", "m", "with a zeroed output",
                "without", "on-off", "cuBLASLt", "on/cu");
    for (int i = 0; i < p->shapes->n; i++)
        for (int k = 0; k < p->n_batches; k++) {
            pz_gemm_shape s = p->shapes->at[i];
            s.m = p->batches[k];
            const pz_tuned_row *r = pz_tuned_exact(table, &s);
            if (r) add_row(&b, r);
        }
    add_ranks(&b, p, table, tally);
    add_tally(&b, tally);
    return pz_str_take(&b, out, err);
}
