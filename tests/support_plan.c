/* SPDX-License-Identifier: Apache-2.0 */
#include "support_plan.h"

const char support_layer_text[] =
    "weight @embed: bf16[64,256]\n"
    "weight @layers.0.input_layernorm: bf16[256]\n"
    "weight @layers.0.qkv_a: bf16[704,256]\n"
    "weight @layers.0.q_a_layernorm: bf16[128]\n"
    "weight @layers.0.q_b: bf16[768,128]\n"
    "weight @layers.0.kv_a_layernorm: bf16[512]\n"
    "weight @layers.0.inv_freq: f32[32]\n"
    "weight @layers.0.kv_b: bf16[1024,512]\n"
    "weight @layers.0.o_proj: bf16[256,512]\n"
    "weight @layers.0.post_attention_layernorm: bf16[256]\n"
    "weight @layers.0.gate: bf16[8,256]\n"
    "weight @layers.0.gate_up: bf16[8,256,256]\n"
    "weight @layers.0.down: bf16[8,256,128]\n"
    "weight @norm: bf16[256]\n"
    "weight @lm_head: bf16[64,256]\n"
    "\n"
    "func @decode(%ids: i32[m], %pos: i32[m], %seq: i32[m]) {\n"
    "  %x0 = embed(%ids, @embed)\n"
    "  %z0 = buffer() {slices=[qkv_a, q_b, o_proj]}\n"
    "  %n1, %z1 = rms_norm(%x0, @layers.0.input_layernorm, zero_fill=%z0)\n"
    "  %a = gemm(%n1, @layers.0.qkv_a, into=%z1:qkv_a) {accum=fixed}\n"
    "  %o = call @attention.0(%a, %pos, %seq, q_b=%z1:q_b, o_proj=%z1:o_proj)\n"
    "  %z2 = buffer() {slices=[gate]}\n"
    "  %n2, %x1, %z3 = fused_allreduce_rmsnorm(%o, %x0, @layers.0.post_attention_layernorm, zero_fill=%z2)\n"
    "  %g = gemm(%n2, @layers.0.gate, into=%z3:gate) {accum=fixed}\n"
    "  %ei, %ew = router(%g) {top_k=2}\n"
    "  %e = moe_experts(%n2, %ei, %ew, @layers.0.gate_up, @layers.0.down)\n"
    "  %n3, %x2 = fused_allreduce_rmsnorm(%e, %x1, @norm)\n"
    "  %logits = gemm(%n3, @lm_head) {accum=fixed}\n"
    "  return %logits\n"
    "}\n"
    "\n"
    "func @attention.0(%a: fixed[m,704], %pos: i32[m], %seq: i32[m]) opaque slots(q_b: fixed[m,768], o_proj: "
    "fixed[m,256]) {\n"
    "  %qa = slice(%a) {start=0, size=128}\n"
    "  %kv = slice(%a) {start=128, size=576}\n"
    "  mla_cache_write(%kv, %pos, %seq, @layers.0.kv_a_layernorm, @layers.0.inv_freq) {layer=0}\n"
    "  %qn = latent_rms_norm(%qa, @layers.0.q_a_layernorm)\n"
    "  %q = gemm(%qn, @layers.0.q_b) {accum=fixed, slot=q_b}\n"
    "  %ql = mla_absorb_q(%q, %pos, @layers.0.kv_b, @layers.0.inv_freq) {heads=4, nope=128, rope=64, v=128}\n"
    "  %ol = mla_attention(%ql, %pos, %seq) {layer=0, heads=4, latent=512, rope=64, scale=0.1}\n"
    "  %ov = mla_absorb_v(%ol, @layers.0.kv_b) {heads=4, nope=128, v=128}\n"
    "  %y = gemm(%ov, @layers.0.o_proj) {accum=fixed, slot=o_proj}\n"
    "  return %y\n"
    "}\n";

pz_graph *support_graph(const char *text) {
    pz_graph *g;
    pz_error err;
    assert_ok(pz_graph_parse(text, strlen(text), "test.pz", &g, &err), &err);
    return g;
}

pz_plan_options support_plan_options(const char *device, int units, int m) {
    pz_plan_options o = {.m = m, .strategy = PZ_ZERO_SELF};
    pz_error err;
    assert_ok(pz_device_find(device, units, &o.device, &err), &err);
    return o;
}

pz_plan *support_plan(const pz_graph *g, const pz_plan_options *o) {
    pz_plan *p;
    pz_error err;
    assert_ok(pz_plan_create(g, o, &p, &err), &err);
    return p;
}

int support_launch(const pz_plan *p, const char *role, int n) {
    for (int i = 0; i < p->launches.n; i++)
        if (pz_streq(p->launches.at[i].role, role) && n-- == 0) return i;
    fail_msg("no launch %s", role);
    return -1;
}

int support_place(const pz_plan *p, const char *name) {
    for (int i = 0; i < p->places.n; i++)
        if (pz_streq(p->places.at[i].name, name)) return i;
    fail_msg("no place %s", name);
    return -1;
}
