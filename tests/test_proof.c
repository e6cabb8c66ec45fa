/* SPDX-License-Identifier: Apache-2.0 */
/* The checker against plans that are broken in one way each. */
#include "support_plan.h"

typedef struct fixture {
    pz_graph *g;
    pz_plan *p;
    int norm1, qkv, write, latent, q, absorb_q, attention, absorb_v, o, norm2, gate, router, moe,
        lm_head; /* launches */
} fixture;

static fixture open_fixture(void) {
    fixture f = {.g = support_graph(support_layer_text)};
    pz_plan_options o = support_plan_options("cpu", 2, 3);
    o.gate = PZ_GATE_OPEN;
    f.p = support_plan(f.g, &o);
    f.norm1 = support_launch(f.p, "rms_norm", 0);
    f.qkv = support_launch(f.p, "gemm qkv_a", 0);
    f.write = support_launch(f.p, "mla_cache_write", 0);
    f.latent = support_launch(f.p, "latent_rms_norm", 0);
    f.q = support_launch(f.p, "gemm q_b", 0);
    f.absorb_q = support_launch(f.p, "mla_absorb_q", 0);
    f.attention = support_launch(f.p, "mla_attention", 0);
    f.absorb_v = support_launch(f.p, "mla_absorb_v", 0);
    f.o = support_launch(f.p, "gemm o_proj", 0);
    f.norm2 = support_launch(f.p, "fused_allreduce_rmsnorm", 0);
    f.gate = support_launch(f.p, "gemm gate", 0);
    f.router = support_launch(f.p, "router", 0);
    f.moe = support_launch(f.p, "moe_experts", 0);
    f.lm_head = support_launch(f.p, "gemm lm_head", 0);
    return f;
}

static void close_fixture(fixture *f) {
    pz_plan_free(f->p);
    pz_graph_free(f->g);
}

static pz_launch *launch(fixture *f, int i) {
    return &f->p->launches.at[i];
}
static pz_place *out(fixture *f, int i) {
    return &f->p->places.at[f->p->launches.at[i].out[0]];
}
static pz_slice *slice(fixture *f, int i) {
    return &f->p->slices.at[f->p->launches.at[i].slice];
}

/* ---- one function a way to break ---- */
static void fill_too_short(fixture *f) {
    f->p->fills.at[0].bytes -= 64;
    f->p->fill_bytes -= 64;
}
static void fill_too_long(fixture *f) {
    f->p->fills.at[1].bytes += 64;
    f->p->fill_bytes += 64;
}
static void fill_shifted(fixture *f) {
    f->p->fills.at[0].offset += 64;
}
/* Fill and slices agree with each other, but not with what the GEMM writes. */
static void slice_too_short(fixture *f) {
    pz_fill *fill = &f->p->fills.at[1];
    slice(f, f->gate)->bytes -= 64;
    f->p->places.at[fill->place].bytes = fill->bytes -= 64;
    f->p->fill_bytes -= 64;
}
static void slice_too_long(fixture *f) { /* moved to the end of the arena, where it disturbs nothing */
    pz_fill *fill = &f->p->fills.at[1];
    pz_slice *s = slice(f, f->gate);
    fill->offset = s->offset = out(f, f->gate)->offset = f->p->places.at[fill->place].offset = f->p->arena_bytes;
    f->p->places.at[fill->place].bytes = fill->bytes = s->bytes += 64;
    f->p->fill_bytes += 64;
    f->p->arena_bytes += s->bytes;
}
static void slice_elsewhere(fixture *f) {
    out(f, f->q)->offset += 64;
}
static void fill_late(fixture *f) {
    int later = f->absorb_v;
    launch(f, f->norm1)->fill = -1;
    launch(f, later)->fill = 0;
    launch(f, later)->node = launch(f, f->norm1)->node; /* a donor, so that only its place in the order is wrong */
    f->p->fills.at[0].donor = later;
}
static void fill_missing(fixture *f) {
    launch(f, f->norm1)->fill = -1;
}
static void fill_gone(fixture *f) { /* the record too */
    pz_vec_free(&f->p->fills.at[1].gates);
    f->p->fills.n = 1;
    launch(f, f->norm2)->fill = -1;
    f->p->fill_bytes = f->p->fills.at[0].bytes;
}
static void fill_by_another(fixture *f) {
    launch(f, f->norm2)->fill = 0;
    f->p->fills.at[0].donor = f->norm2;
}
static void fill_of_no_donor(fixture *f) {
    launch(f, f->norm1)->node = launch(f, f->moe)->node;
}
static void consumer_does_not_wait(fixture *f) {
    launch(f, f->o)->waits = false;
}
static void launch_before_consumer_does_not_wait(fixture *f) {
    launch(f, f->attention)->waits = false;
}
static void launch_after_donor_does_not_wait(fixture *f) { /* which is a consumer, too, and the first of three */
    launch(f, f->qkv)->waits = false;
}
static void fill_over_live(fixture *f) { /* %x0 lives from the embedding to the second norm */
    int x0 = support_place(f->p, "%x0");
    f->p->places.at[x0].offset = f->p->fills.at[0].offset;
}
static void reader_between(fixture *f) {
    launch(f, f->write)->in[0].place = launch(f, f->q)->out[0];
}
static void writer_between(fixture *f) {
    out(f, f->latent)->offset = slice(f, f->q)->offset;
}
static void reused_between(fixture *f) { /* another place in the buffer's memory before its last consumer */
    out(f, f->attention)->offset = slice(f, f->o)->offset - 64 * 64;
}
static void fill_between(fixture *f) { /* a second fill on zeros that wait for their GEMM */
    pz_fill *b = &f->p->fills.at[1];
    launch(f, f->norm2)->fill = -1;
    launch(f, f->norm1 + 1)->fill = 1;
    launch(f, f->norm1 + 1)->node = launch(f, f->norm1)->node;
    b->donor = f->norm1 + 1;
    pz_slice *gate = slice(f, f->gate), *o = slice(f, f->o);
    gate->offset = b->offset = o->offset;
    out(f, f->gate)->offset = o->offset;
    f->p->places.at[b->place].offset = o->offset;
}
static void slice_of_two_fills(fixture *f) { /* fill 1 claims gate, which then lies in fill 0's bytes as well */
    slice(f, f->gate)->fill = 0;
}
static void nobody_consumes(fixture *f) {
    launch(f, f->q)->strategy = PZ_ZERO_SELF;
    launch(f, f->q)->slice = -1;
}
static void nobody_consumes_last(fixture *f) {
    launch(f, f->gate)->strategy = PZ_ZERO_SELF;
    launch(f, f->gate)->slice = -1;
}
static void consumed_twice(fixture *f) {
    launch(f, f->lm_head)->strategy = PZ_ZERO_PREZERO;
    launch(f, f->lm_head)->slice = launch(f, f->gate)->slice;
}
static void consumed_by_another(fixture *f) {
    slice(f, f->gate)->consumer = f->lm_head;
}
static void not_accumulating(fixture *f) {
    launch(f, f->o)->gemm.split = 1;
}
static void not_active(fixture *f) {
    slice(f, f->o)->active = false;
}
static void skips_without_slice(fixture *f) {
    launch(f, f->lm_head)->strategy = PZ_ZERO_PREZERO;
}
static void slice_without_skipping(fixture *f) {
    launch(f, f->lm_head)->slice = 0;
}
static void skips_unfilled(fixture *f) {
    pz_fill *fill = &f->p->fills.at[1];
    slice(f, f->gate)->filled = false;
    out(f, f->gate)->root = launch(f, f->gate)->out[0];
    f->p->fill_bytes -= fill->bytes;
    fill->bytes = fill->level = 0;
    fill->place = -1;
}
static void adds_without_zero(fixture *f) {
    launch(f, f->lm_head)->strategy = PZ_ZERO_NONE;
}
static void consumer_before_donor(fixture *f) {
    pz_launch gate = *launch(f, f->gate);
    for (int i = f->gate; i > f->norm2; i--) f->p->launches.at[i] = f->p->launches.at[i - 1];
    f->p->launches.at[f->norm2] = gate;
    f->p->fills.at[1].donor = f->norm2 + 1;
    slice(f, f->norm2)->consumer = f->norm2;
}
static void buffer_absent(fixture *f) {
    f->p->fills.at[1].place = -1;
}
static void level_wrong(fixture *f) {
    f->p->fills.at[0].level = 1;
}
static void fill_bytes_wrong(fixture *f) {
    f->p->fill_bytes += 64;
}
static void arena_overflow(fixture *f) {
    f->p->arena_bytes -= 64;
}
static void arena_underflow(fixture *f) {
    out(f, f->moe)->offset = -64;
}
static void misaligned(fixture *f) {
    out(f, f->moe)->offset += 4;
}
static void place_too_small(fixture *f) {
    out(f, f->moe)->bytes -= 4;
}
static void view_outside(fixture *f) {
    int kv = support_place(f->p, "attention.0/%kv");
    f->p->places.at[kv].col += 1;
}
static void view_of_view(fixture *f) {
    f->p->places.at[support_place(f->p, "attention.0/%kv")].root = support_place(f->p, "attention.0/%qa");
}
static void overlap_inputs(fixture *f) {
    f->p->places.at[f->p->inputs.at[1]].offset = f->p->places.at[f->p->inputs.at[0]].offset;
}
static void overwritten_value(fixture *f) { /* the experts' output on the residual that the last norm still reads */
    int x1 = support_place(f->p, "%x1");
    out(f, f->router)->offset = f->p->places.at[x1].offset;
}
static void overwritten_input(fixture *f) {
    f->p->places.at[support_place(f->p, "%n1.norm")].offset = f->p->places.at[f->p->inputs.at[1]].offset;
}
/* A reader of the accumulator %q comes after its x_norm has gone. */
static void overwritten_norm(fixture *f) {
    out(f, f->absorb_q)->offset = f->p->arena_bytes; /* out of the way */
    f->p->arena_bytes += (out(f, f->absorb_q)->bytes + 63) / 64 * 64;
    out(f, f->attention)->offset = f->p->places.at[support_place(f->p, "attention.0/%qn.norm")].offset;
    launch(f, f->absorb_v)->in[0].place = launch(f, f->q)->out[0];
}
static void in_place(fixture *f) {
    out(f, f->moe)->offset = f->p->places.at[launch(f, f->moe)->in[0].place].offset;
}
static void reads_nothing(fixture *f) {
    launch(f, f->write)->in[0].place = launch(f, f->moe)->out[0];
}
static void norm_absent(fixture *f) {
    f->p->places.at[launch(f, f->lm_head)->in[0].place].norm = -1;
}
static void unit_absent(fixture *f) {
    out(f, f->gate)->scale_norm = -1;
}
static void unit_of_view_absent(fixture *f) {
    f->p->places.at[support_place(f->p, "attention.0/%qa")].scale_weight = NULL;
}
/* After the last consumer of a fill, so that a value is what is not ordered. */
static void does_not_wait(fixture *f) {
    launch(f, f->router)->waits = false;
}
/* It reads nothing and writes where nothing was, so that only the reader behind it is hurt. */
static void one_between_does_not_wait(fixture *f) {
    pz_launch *moe = launch(f, f->moe);
    moe->waits = false;
    for (int i = 0; i < PZ_MAX_OPERANDS; i++) moe->in[i].place = -1;
    out(f, f->moe)->offset = (f->p->arena_bytes + 63) / 64 * 64;
    f->p->arena_bytes = out(f, f->moe)->offset + out(f, f->moe)->bytes;
}
static void workspace_small(fixture *f) {
    launch(f, f->lm_head)->strategy = PZ_ZERO_REDUCE; /* and has none at all */
}
static void output_overwritten(fixture *f) {
    f->p->outputs.at[0] = support_place(f->p, "%g");
}
static void output_absent(fixture *f) {
    f->p->outputs.at[0] = f->p->places.n;
}
static void operand_absent(fixture *f) {
    launch(f, f->moe)->in[0].place = -2;
}
static void place_absent(fixture *f) {
    launch(f, f->moe)->out[0] = f->p->places.n + 3;
}

typedef struct breakage {
    const char *name;
    void (*apply)(fixture *f);
    const char *launch; /* in the message: what and where */
    const char *why;
} breakage;
#define BREAKAGE(fn, where, what) \
    { #fn, fn, where, what }
static const breakage breakages[] = {
    BREAKAGE(fill_too_short, "launch 1 rms_norm @layers.0.input_layernorm", "64 bytes too short"),
    BREAKAGE(fill_too_long, "launch 10 fused_allreduce_rmsnorm @layers.0.post_attention_layernorm",
             "64 bytes too long"),
    BREAKAGE(fill_shifted, "launch 1", "slice qkv_a is not at byte"),
    BREAKAGE(slice_too_short, "place %g", "not within buffer 10"),
    BREAKAGE(slice_too_long, "launch 11 gemm @layers.0.gate", "slice gate has 192 bytes"),
    BREAKAGE(slice_elsewhere, "launch 5 gemm @layers.0.q_b", "does not lie at slice q_b"),
    BREAKAGE(fill_late, "launch 2 gemm @layers.0.qkv_a", "come from launch 8, which is not before it"),
    BREAKAGE(fill_missing, "launch 1", "fill 0 is missing"),
    BREAKAGE(fill_gone, "launch 11 gemm @layers.0.gate", "slice gate is not filled"),
    BREAKAGE(fill_by_another, "launch 10", "fill 1 is missing"),
    BREAKAGE(fill_of_no_donor, "launch 1", "is no donor"),
    BREAKAGE(consumer_does_not_wait, "launch 9 gemm @layers.0.o_proj: does not wait",
             "launch 9 is not ordered after the fill of launch 1"),
    BREAKAGE(launch_before_consumer_does_not_wait, "launch 7 mla_attention: does not wait",
             "launch 9 is not ordered after the fill of launch 1"),
    BREAKAGE(launch_after_donor_does_not_wait, "launch 2 gemm @layers.0.qkv_a: does not wait",
             "launch 2 is not ordered after the fill of launch 1"),
    BREAKAGE(fill_over_live, "launch 1", "in the same bytes"),
    BREAKAGE(reader_between, "launch 3 mla_cache_write", "zeroed by launch 1 for a later gemm"),
    BREAKAGE(writer_between, "launch 4 latent_rms_norm", "zeroed by launch 1 for a later gemm"),
    BREAKAGE(reused_between, "launch 7 mla_attention", "zeroed by launch 1 for a later gemm"),
    BREAKAGE(fill_between, "launch 2", "zeroed by launch 1 for a later gemm"),
    BREAKAGE(slice_of_two_fills, "launch 10", "slice gate is not at byte"),
    BREAKAGE(nobody_consumes, "launch 1", "slice q_b, which nobody consumes"),
    BREAKAGE(nobody_consumes_last, "launch 10", "slice gate, which nobody consumes"),
    BREAKAGE(consumed_twice, "launch 15 gemm @lm_head", "consumes slice gate, which is consumed by launch 11"),
    BREAKAGE(consumed_by_another, "launch 10", "slice gate, which nobody consumes"),
    BREAKAGE(not_accumulating, "launch 9 gemm @layers.0.o_proj", "does not add"),
    BREAKAGE(not_active, "launch 9 gemm @layers.0.o_proj", "does not add"),
    BREAKAGE(skips_without_slice, "launch 15 gemm @lm_head", "without a slice"),
    BREAKAGE(slice_without_skipping, "launch 15 gemm @lm_head", "has a slice but strategy self"),
    BREAKAGE(skips_unfilled, "launch 11 gemm @layers.0.gate", "slice gate is not filled"),
    BREAKAGE(adds_without_zero, "launch 15 gemm @lm_head", "nothing zeroes"),
    BREAKAGE(consumer_before_donor, "launch 10 gemm @layers.0.gate", "come from launch 11, which is not before it"),
    BREAKAGE(buffer_absent, "launch 10", "not that of its buffer"),
    BREAKAGE(level_wrong, "launch 1", "level 1 but 3 slices are filled"),
    BREAKAGE(fill_bytes_wrong, "fills have", "the plan says"),
    BREAKAGE(arena_overflow, "place", "outside the arena"),
    BREAKAGE(arena_underflow, "place %e", "outside the arena"),
    BREAKAGE(misaligned, "place %e", "not aligned to 64"),
    BREAKAGE(place_too_small, "place %e", "not what its type needs"),
    BREAKAGE(view_outside, "place attention.0/%kv", "not what its type needs"),
    BREAKAGE(view_of_view, "place attention.0/%kv", "root"),
    BREAKAGE(overlap_inputs, "input 1", "overlaps another input"),
    BREAKAGE(overwritten_value, "launch 14 fused_allreduce_rmsnorm @norm", "overwritten by launch 12 with %ei"),
    BREAKAGE(overwritten_input, "launch 3 mla_cache_write", "overwritten by launch 1 with %n1.norm"),
    BREAKAGE(overwritten_norm, "launch 8 mla_absorb_v @layers.0.kv_b: reads attention.0/%qn.norm",
             "overwritten by launch 7 with attention.0/%ol"),
    BREAKAGE(in_place, "launch 13 moe_experts", "at the same time"),
    BREAKAGE(reads_nothing, "launch 3 mla_cache_write", "reads %e"),
    BREAKAGE(norm_absent, "launch 15 gemm @lm_head", "has no x_norm"),
    BREAKAGE(unit_absent, "launch 11 gemm @layers.0.gate", "does not say the unit"),
    BREAKAGE(unit_of_view_absent, "launch 4 latent_rms_norm", "without the x_norm or weight"),
    BREAKAGE(does_not_wait, "launch 12 router", "is not ordered after launch 11"),
    BREAKAGE(one_between_does_not_wait, "launch 14 fused_allreduce_rmsnorm @norm: %x1",
             "is not ordered after launch 10: it or a launch between"),
    BREAKAGE(workspace_small, "launch 15 gemm @lm_head", "workspace does not hold 4 partial results"),
    BREAKAGE(output_overwritten, "output 0 is not in its place", "overwritten by launch"),
    BREAKAGE(output_absent, "output 0 is not in its place", "does not exist"),
    BREAKAGE(operand_absent, "launch 13 moe_experts", "place -2, which does not exist"),
    BREAKAGE(place_absent, "launch 13 moe_experts", "does not exist"),
};

static void test_broken_plans(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof breakages / sizeof breakages[0]; i++) {
        const breakage *b = &breakages[i];
        fixture f = open_fixture();
        pz_error err = {0};
        assert_ok(pz_plan_prove(f.p, &err), &err); /* control: unbroken, it passes */
        assert_true(f.p->proven > 0);
        b->apply(&f);
        pz_status st = pz_plan_prove(f.p, &err);
        if (st != PZ_E_PROOF || !strstr(err.msg, b->launch) || !strstr(err.msg, b->why))
            fail_msg("%s: %s: %s", b->name, pz_status_name(st), err.msg);
        assert_int_equal(f.p->proven, 0);
        close_fixture(&f);
    }
}

/* What the control proves: each of the four slices, both fills, every read, the output. */
static void test_control(void **state) {
    (void)state;
    fixture f = open_fixture();
    int reads = 0, prezero = 0;
    pz_access acc[PZ_MAX_ACCESSES];
    for (int i = 0; i < f.p->launches.n; i++) {
        prezero += f.p->launches.at[i].strategy == PZ_ZERO_PREZERO;
        for (int k = pz_launch_accesses(f.p, i, acc) - 1; k >= 0; k--) reads += acc[k].kind == PZ_READ;
    }
    assert_int_equal(prezero, 4);
    /* the output is a fixed accumulator: it and its norm are read by the caller */
    assert_int_equal(f.p->proven, reads + prezero + 2 + 2);
    close_fixture(&f);
}

static pz_status prove_again(void *ctx) {
    pz_error err;
    return pz_plan_prove(ctx, &err);
}

static void test_memory(void **state) {
    (void)state;
    fixture f = open_fixture();
    assert_true(support_alloc_sweep(prove_again, f.p) >= 2);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control),
        cmocka_unit_test(test_broken_plans),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
