/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing an engine: options, graph, passes, weights, plans. */
#include <stdio.h>

#include "base/knobs.h"
#include "base/par.h"
#include "engine/session.h"
#include "pass/pass.h"

enum { PZ_MAX_ROWS = 65536, PZ_MAX_SEQUENCES = 1 << 20, PZ_MAX_THREADS = 1024 };

/* Copies the caller's options over zeros, so that older callers (smaller size) get the defaults of newer fields. */
static pz_status take_options(const pz_engine_options *in, pz_engine_options *out, pz_error *err) {
    *out = (pz_engine_options){0};
    if (!in) return PZ_OK;
    if (in->size < sizeof in->size || in->size > sizeof *in)
        return pz_fail(err, PZ_E_INVAL, "pz_engine_options.size is %zu: set it to sizeof(pz_engine_options), here %zu",
                       in->size, sizeof *in);
    memcpy(out, in, in->size);
    return PZ_OK;
}

static pz_status in_range(const char *what, int64_t v, int64_t lo, int64_t hi, pz_error *err) {
    if (v >= lo && v <= hi) return PZ_OK;
    return pz_fail(err, PZ_E_RANGE, "%s %lld: must be between %lld and %lld", what, (long long)v, (long long)lo,
                   (long long)hi);
}

/* Applies defaults that do not depend on the model and checks ranges. */
static pz_status resolve(pz_engine_options *o, pz_engine *e, pz_error *err) {
    PZ_TRY(in_range("prezero", o->prezero, -1, 1, err));
    PZ_TRY(in_range("accum", o->accum, PZ_ACCUM_FIXED, PZ_ACCUM_BF16, err));
    PZ_TRY(in_range("act", o->act, PZ_ACT_BF16, PZ_ACT_F32, err));
    if (o->max_batch == 0) o->max_batch = 128;
    if (o->prefill_chunk == 0) o->prefill_chunk = 128;
    if (o->max_sequences == 0) o->max_sequences = o->max_batch;
    PZ_TRY(in_range("max_batch", o->max_batch, 1, PZ_MAX_ROWS, err));
    PZ_TRY(in_range("prefill_chunk", o->prefill_chunk, 1, PZ_MAX_ROWS, err));
    PZ_TRY(in_range("max_sequences", o->max_sequences, 1, PZ_MAX_SEQUENCES, err));
    PZ_TRY(in_range("threads", o->threads, 0, PZ_MAX_THREADS, err));
    if (o->tp == 0) o->tp = 1;
    PZ_TRY(in_range("tp", o->tp, 1, PZ_MAX_RANKS, err));
    PZ_TRY(in_range("experts", o->experts, PZ_EXPERTS_BY_WIDTH, PZ_EXPERTS_BY_EXPERT, err));
    PZ_TRY(in_range("rank_timeout_ms", o->rank_timeout_ms, 0, INT32_MAX, err));
    e->tp = o->tp;
    e->experts = o->experts;
    e->prezero = o->prezero == 1;
    if (o->prezero == -1) PZ_TRY(pz_knob_bool(PZ_KNOB_PREZERO, &e->prezero, err));
    if (o->threads == 0) {
        int64_t threads;
        PZ_TRY(pz_knob_int(PZ_KNOB_THREADS, &threads, err));
        o->threads = threads ? (int)threads : pz_par_cpus();
    }
    const char *gate = o->gate, *strategy = o->strategy;
    if (!gate) PZ_TRY(pz_knob_text(PZ_KNOB_GATE, &gate, err));
    if (!strategy) PZ_TRY(pz_knob_text(PZ_KNOB_STRATEGY, &strategy, err));
    int index;
    PZ_TRY(pz_knob_enum_index(PZ_KNOB_GATE, gate, "gate", &index, err));
    e->gate = (pz_gate_mode)index;
    PZ_TRY(pz_knob_enum_index(PZ_KNOB_STRATEGY, strategy, "strategy", &index, err));
    if (!pz_strategy_option(strategy, &e->strategy))
        return pz_fail(err, PZ_E_INTERNAL, "strategy %s is a knob's word but not a plan's", strategy);
    e->max_batch = o->max_batch;
    e->prefill_chunk = o->prefill_chunk;
    e->max_rows = o->max_batch > o->prefill_chunk ? o->max_batch : o->prefill_chunk;
    e->timed = o->profile != 0;
    return PZ_OK;
}

static pz_status find_inputs(pz_engine *e, pz_error *err) {
    const pz_func *entry = e->rank[0].graph->funcs.at[0];
    const struct {
        const char *name;
        int *index;
    } inputs[] = {{"ids", &e->in_ids}, {"pos", &e->in_pos}, {"seq", &e->in_seq}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        const pz_value *v = pz_func_find_value(entry, inputs[i].name);
        if (!v || v->def || v->type.dt != PZ_DT_I32)
            return pz_fail(err, PZ_E_INTERNAL, "the model's graph has no parameter %%%s: i32[m]", inputs[i].name);
        *inputs[i].index = v->index;
    }
    if (entry->params.n != PZ_ENGINE_INPUTS)
        return pz_fail(err, PZ_E_INTERNAL, "the model's graph has %d parameters, expected %d", entry->params.n,
                       PZ_ENGINE_INPUTS);
    return PZ_OK;
}

/* Only whole experts make the graphs of ranks differ. */
static pz_status build_graphs(pz_engine *e, const char *dir, const pz_engine_options *o, pz_error *err) {
    pz_model_graph_options mo = {
        .size = sizeof mo, .tp = e->tp, .accum = o->accum, .act = o->act, .experts = e->experts};
    for (int r = 0; r < e->tp; r++) {
        pz_rank *k = &e->rank[r];
        if (r > 0 && e->experts == PZ_EXPERTS_BY_WIDTH) {
            k->graph = e->rank[0].graph;
            continue;
        }
        mo.rank = r;
        PZ_TRY(pz_model_graph(&e->hf, &mo, &k->graph, err));
        PZ_TRY(pz_passes_run(k->graph, pz_pipeline(e->prezero), NULL, err));
    }
    PZ_TRY(find_inputs(e, err));
    return pz_checkpoint_open(dir, &e->checkpoint, err);
}

/* use[w]: an op that reads weight w, PZ_OP_COUNT if none does. */
static void find_uses(const pz_graph *g, pz_op *use) {
    for (int i = 0; i < g->weights.n; i++) use[i] = PZ_OP_COUNT;
    for (int f = 0; f < g->funcs.n; f++)
        for (int n = 0; n < g->funcs.at[f]->nodes.n; n++) {
            const pz_node *node = g->funcs.at[f]->nodes.at[n];
            for (int a = 0; a < node->args.n; a++)
                if (node->args.at[a].kind == PZ_ARG_WEIGHT) use[node->args.at[a].weight->index] = node->op;
        }
}

/* A rank's share of the weights. */
static pz_status load_rank(pz_engine *e, int rank, void *arg, pz_error *err) {
    (void)arg;
    const pz_graph *g = e->rank[rank].graph;
    pz_shard shard = {.tp = e->tp, .rank = rank, .experts = e->experts};
    pz_op *use = pz_calloc((size_t)g->weights.n, sizeof *use);
    if (!use) return PZ_NOMEM(err);
    find_uses(g, use);
    pz_status st = PZ_OK;
    for (int i = 0; i < g->weights.n && st == PZ_OK; i++) {
        pz_host_weight host = {0};
        if (use[i] == PZ_OP_COUNT) continue;
        st = pz_weight_bind_shard(&e->hf, e->checkpoint, g->weights.at[i], &shard, &host, err);
        if (st == PZ_OK) st = e->api->load(e->rank[rank].backend, g->weights.at[i], use[i], &host, err);
        pz_host_weight_free(&host);
    }
    pz_free(use);
    return st;
}

static pz_status load_weights(pz_engine *e, pz_error *err) {
    PZ_TRY(pz_engine_on_ranks(e, load_rank, NULL, err));
    return pz_weights_check_unused(&e->hf, e->checkpoint, err);
}

static pz_status make_session(pz_engine *e, const pz_engine_options *o, pz_error *err) {
    int context = o->context;
    int64_t limit = e->hf.max_positions < INT32_MAX ? e->hf.max_positions : INT32_MAX;
    if (context == 0) context = limit < 4096 ? (int)limit : 4096;
    PZ_TRY(in_range("context", context, 1, limit, err));
    pz_backend *backends[PZ_MAX_RANKS];
    for (int r = 0; r < e->tp; r++) backends[r] = e->rank[r].backend;
    PZ_TRY(pz_kv_init(&e->kv, e->api, backends, e->tp, o->act == PZ_ACT_BF16 ? PZ_DT_BF16 : PZ_DT_F32,
                      (int)e->hf.layers, (int)(e->hf.kv_lora + e->hf.rope), o->max_sequences, context, err));
    e->pending = pz_calloc((size_t)o->max_sequences, sizeof *e->pending);
    e->all_rows = pz_calloc((size_t)e->max_rows, sizeof *e->all_rows);
    if (!e->pending || !e->all_rows) return PZ_NOMEM(err);
    for (int i = 0; i < e->max_rows; i++) e->all_rows[i] = i;
    for (int i = 0; i < PZ_ENGINE_INPUTS; i++) {
        e->inputs[i] = pz_calloc((size_t)e->max_rows, sizeof *e->inputs[i]);
        if (!e->inputs[i]) return PZ_NOMEM(err);
    }
    pz_bucket_set_init(&e->decode, e->max_batch);
    pz_bucket_set_init(&e->prompt, e->max_rows);
    for (int i = 0; i < e->decode.n; i++) {
        pz_prepared *p;
        PZ_TRY(pz_engine_prepare(e, e->decode.rows[i], true, &p, err));
    }
    return PZ_OK;
}

pz_status pz_engine_open(const char *dir, const pz_engine_options *opts, pz_engine **out, pz_error *err) {
    if (!dir || !out) return pz_fail(err, PZ_E_INVAL, "pz_engine_open: needs a directory and a place for the engine");
    int64_t start = pz_now_ns();
    pz_engine_options o;
    pz_engine *e = pz_calloc(1, sizeof *e);
    if (!e) return PZ_NOMEM(err);
    pz_status st = take_options(opts, &o, err);
    if (st == PZ_OK) st = resolve(&o, e, err);
    if (st == PZ_OK) st = pz_hf_config_load(dir, &e->hf, err);
    if (st == PZ_OK) st = build_graphs(e, dir, &o, err);
    if (st == PZ_OK) st = pz_engine_open_ranks(e, o.rank_timeout_ms, err);
    pz_engine_begin_turn(e);
    if (st == PZ_OK) st = pz_engine_open_device(e, o.device, o.threads, err);
    if (st == PZ_OK) st = load_weights(e, err);
    if (st == PZ_OK) st = make_session(e, &o, err);
    pz_engine_end_turn(e);
    if (st != PZ_OK) {
        pz_engine_close(e);
        return st;
    }
    e->load_seconds = (double)(pz_now_ns() - start) * 1e-9;
    *out = e;
    return PZ_OK;
}

void pz_engine_close(pz_engine *e) {
    if (!e) return;
    pz_engine_begin_turn(e);
    pz_bucket_set_free(e, &e->decode);
    pz_bucket_set_free(e, &e->prompt);
    pz_kv_free(&e->kv);
    pz_engine_close_ranks(e);
    pz_engine_end_turn(e);
    pz_tuned_free(e->tuned);
    pz_checkpoint_close(e->checkpoint);
    for (int i = 0; i < PZ_ENGINE_INPUTS; i++) pz_free(e->inputs[i]);
    pz_free(e->pending);
    pz_free(e->all_rows);
    pz_free(e);
}

void pz_engine_get_info(const pz_engine *e, pz_engine_info *info) {
    if (!info) return;
    *info = (pz_engine_info){0};
    if (!e) return;
    *info = (pz_engine_info){.vocab = (int)e->hf.vocab,
                             .layers = (int)e->hf.layers,
                             .hidden = (int)e->hf.hidden,
                             .context = e->kv.context,
                             .threads = e->device.units,
                             .prezero = e->prezero,
                             .bos = (int)e->hf.bos,
                             .eos = e->hf.n_eos ? (int)e->hf.eos[0] : -1,
                             .cache_bytes = pz_kv_bytes(&e->kv),
                             .arena_bytes = e->arena_bytes * e->tp,
                             .load_seconds = e->load_seconds,
                             .tp = e->tp};
    snprintf(info->isa, sizeof info->isa, "%s", e->api->isa(e->rank[0].backend));
    snprintf(info->device, sizeof info->device, "%s", e->device_name);
    for (int r = 0; r < e->tp; r++) {
        int64_t used, total;
        e->api->memory(e->rank[r].backend, &used, &total);
        info->device_used_bytes += used;
        info->device_total_bytes += total;
        info->weight_bytes += e->api->weight_bytes(e->rank[r].backend);
    }
}

const int *pz_engine_buckets(const pz_engine *e, int *n) {
    if (n) *n = e ? e->decode.n : 0;
    return e ? e->decode.rows : NULL;
}

pz_status pz_engine_plan_text(const pz_engine *e, int rows, char **out, pz_error *err) {
    if (!e || !out) return pz_fail(err, PZ_E_INVAL, "pz_engine_plan_text: needs an engine and a place for the text");
    PZ_TRY(in_range("rows", rows, 1, e->max_batch, err));
    int i = 0;
    while (e->decode.rows[i] < rows) i++;
    return pz_plan_text(e->decode.prepared[i].plan, out, err);
}

pz_status pz_seq_open(pz_engine *e, int *seq, pz_error *err) {
    if (!e || !seq) return pz_fail(err, PZ_E_INVAL, "pz_seq_open: needs an engine and a place for the number");
    return pz_kv_open(&e->kv, seq, err);
}

void pz_seq_close(pz_engine *e, int seq) {
    if (e && pz_kv_is_open(&e->kv, seq)) pz_kv_close(&e->kv, seq);
}

int pz_seq_length(const pz_engine *e, int seq) {
    return e && pz_kv_is_open(&e->kv, seq) ? e->kv.length[seq] : -1;
}
