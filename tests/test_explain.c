/* SPDX-License-Identifier: Apache-2.0 */
#include "support_plan.h"

#include <stdio.h>

#include "base/json.h"
#include "plan/tuned.h"
#include "prezero/graph.h"
#include "prezero/kernels.h"

static pz_graph *config_graph(const char *dir, int tp) {
    pz_graph *g;
    pz_error err;
    pz_model_graph_options o = {.size = sizeof o, .tp = tp};
    assert_ok(pz_graph_from_config(dir, &o, &g, &err), &err);
    return g;
}

static char *explain(const pz_graph *g, pz_explain_options o) {
    char *text;
    pz_error err;
    o.size = sizeof o;
    assert_ok(pz_explain(g, &o, &text, &err), &err);
    return text;
}

static json_t *explain_json(const pz_graph *g, pz_explain_options o) {
    o.json = 1;
    char *text = explain(g, o);
    json_t *root;
    pz_error err;
    assert_ok(pz_json_parse(text, strlen(text), "explain", &root, &err), &err);
    pz_free(text);
    return root;
}

static const json_t *get(const json_t *obj, const char *key) {
    const json_t *v = json_object_get(obj, key);
    if (!v) fail_msg("no key %s", key);
    return v;
}
static int64_t get_int(const json_t *obj, const char *key) {
    assert_true(json_is_integer(get(obj, key)));
    return json_integer_value(get(obj, key));
}
static const char *get_str(const json_t *obj, const char *key) {
    assert_true(json_is_string(get(obj, key)));
    return json_string_value(get(obj, key));
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Number of donors whose weight ends so and whose slices begin with these. */
static int count_donors(const json_t *root, const char *weight, const char *const *slices) {
    const json_t *donors = get(root, "donors");
    int n = 0;
    for (size_t i = 0; i < json_array_size(donors); i++) {
        const json_t *d = json_array_get(donors, i), *names = get(d, "slices");
        bool same = ends_with(get_str(d, "weight"), weight);
        for (size_t k = 0; same && slices[k]; k++) {
            const char *name = json_string_value(json_array_get(names, k));
            same = pz_streq(name, slices[k]);
        }
        n += same;
    }
    return n;
}

static const char *const input_slices[] = {"qkv_a", "q_b", "o_proj", NULL};
static const char *const gate_slices[] = {"gate", NULL};

/* The published case: 61 layers, the first dense. */
static void test_kimi(void **state) {
    (void)state;
    static const char *const configs[] = {"kimi-k2", "kimi-k2.5"};
    static const int parts[8] = {7, 7, 7, 7, 7, 4, 2, 1}; /* blocks of a row, of 1 to 128 rows */
    for (int c = 0; c < 2; c++) {
        char *dir = support_path(PZ_SOURCE_DIR "/tests/data/configs", configs[c]);
        pz_graph *g = config_graph(dir, 4);
        json_t *root = explain_json(g, (pz_explain_options){0});
        assert_int_equal(count_donors(root, ".input_layernorm", input_slices), 61);
        assert_int_equal(count_donors(root, ".post_attention_layernorm", gate_slices), 60);
        const json_t *buckets = get(root, "buckets");
        assert_int_equal(json_array_size(buckets), 8);
        for (size_t i = 0; i < 8; i++) {
            const json_t *b = json_array_get(buckets, i), *fills = get(b, "fills");
            int m = 1 << i;
            int64_t total = 0;
            assert_int_equal(get_int(b, "m"), m);
            assert_true(get_int(b, "proven") > 1000);
            for (size_t k = 0; k < json_array_size(fills); k++) {
                const json_t *f = json_array_get(fills, k), *levels = get(f, "levels");
                total += get_int(f, "bytes");
                if (!ends_with(get_str(f, "donor"), ".input_layernorm")) continue;
                assert_int_equal(json_array_size(levels), 3);
                assert_int_equal(get_int(f, "level"), 3);
                assert_int_equal(get_int(f, "bytes"), (2112 + 3072 + 7168) * 4 * m);
                assert_int_equal(get_int(json_array_get(levels, 0), "bytes"), 2112 * 4 * m);
                /* a row of the collective has several blocks; the first norm is of one rank */
                bool alone = pz_streq(get_str(f, "donor"), "layers.0.input_layernorm");
                assert_int_equal(get_int(json_array_get(levels, 1), "idle_units"), 132 - m * (alone ? 1 : parts[i]));
                assert_true(json_is_real(get(json_array_get(levels, 2), "added_us")));
            }
            assert_int_equal(get_int(b, "fill_bytes"), total);
        }
        const json_t *above = get(root, "above_largest");
        assert_int_equal(get_int(above, "m"), 256);
        assert_int_equal(get_int(above, "fill_bytes"), 0);
        assert_int_equal(json_array_size(get(above, "fills")), 0);
        json_decref(root);
        pz_graph_free(g);
        pz_free(dir);
    }
}

/* fp8 weights cannot be added to: each consumer says so. */
static void test_reasons(void **state) {
    (void)state;
    pz_graph *g = config_graph(PZ_SOURCE_DIR "/tests/data/configs/deepseek-v3", 8);
    json_t *root = explain_json(g, (pz_explain_options){0});
    const json_t *consumers = get(root, "consumers");
    int quantized = 0, n_donors = (int)json_array_size(get(root, "donors"));
    for (size_t i = 0; i < json_array_size(consumers); i++) {
        const json_t *c = json_array_get(consumers, i);
        bool converted = json_is_true(get(c, "converted"));
        assert_int_equal(converted, pz_streq(get_str(c, "reason"), "converted"));
        assert_in_range(get_int(c, "donor") + 1, converted ? 1 : 0, n_donors);
        if (!pz_streq(get_str(c, "reason"), "quantized weights")) continue;
        quantized++;
        assert_contains(get_str(c, "detail"), "fp8");
    }
    assert_true(quantized >= 61);
    assert_int_equal(count_donors(root, ".post_attention_layernorm", gate_slices), 58); /* the router's gate is bf16 */
    json_decref(root);
    char *text = explain(g, (pz_explain_options){0});
    assert_contains(text, "quantized weights");
    pz_free(text);
    pz_graph_free(g);
}

/* By which kernel each collective runs, in every form, and above the largest bucket too. */
static void test_collectives(void **state) {
    (void)state;
    static const struct {
        const char *one_shot, *nccl;
        int ranks;
        const char *kernel[3]; /* of 1, 8 and 128 rows */
        const char *text;
    } cases[] = {
        {NULL, NULL, 0, {"one-shot", "one-shot", "two-step"}, "two-step (one step up to 64 rows), 128 blocks\n"},
        {NULL,
         NULL,
         0,
         {"one-shot", "one-shot", "two-step"},
         "one-shot (one step up to 64 rows), 7 blocks for 1 row\n"},
        {"128", NULL, 0, {"one-shot", "one-shot", "one-shot"}, "one-shot (one step up to 128 rows), 128 blocks\n"},
        {"128", NULL, 4, {"one-shot", "one-shot", "one-shot"}, "(one step up to 128 rows), 132 blocks for 256 rows\n"},
        {"7", NULL, 4, {"one-shot", "two-step", "two-step"}, "(one step up to 7 rows), 56 blocks for 8 rows\n"},
        {NULL, "1", 2, {"nccl", "nccl", "nccl"}, "nccl, 7 blocks for 1 row\n"},
    };
    static const int batches[] = {1, 8, 128}, blocks[] = {7, 56, 128};
    pz_graph *g = config_graph(PZ_SOURCE_DIR "/tests/data/configs/kimi-k2", 4);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        if (cases[c].one_shot) assert_int_equal(setenv("PREZERO_ONE_SHOT", cases[c].one_shot, 1), 0);
        if (cases[c].nccl) assert_int_equal(setenv("PREZERO_NCCL", cases[c].nccl, 1), 0);
        pz_explain_options o = {.batches = batches, .n_batches = 3, .ranks = cases[c].ranks};
        json_t *root = explain_json(g, o);
        assert_int_equal(get_int(get(root, "device"), "ranks"), cases[c].ranks);
        for (size_t i = 0; i < 3; i++) {
            const json_t *list = get(json_array_get(get(root, "buckets"), i), "collectives"),
                         *row = json_array_get(list, 0);
            assert_int_equal(json_array_size(list), 1);
            assert_string_equal(get_str(row, "op"), "fused_allreduce_rmsnorm");
            assert_string_equal(get_str(row, "kernel"), cases[c].kernel[i]);
            assert_int_equal(get_int(row, "count"), 122);
            assert_int_equal(get_int(row, "columns"), 7168);
            assert_int_equal(get_int(row, "blocks"), blocks[i]);
        }
        assert_int_equal(json_array_size(get(get(root, "above_largest"), "collectives")), 1);
        json_decref(root);
        o.with_plan = 1;
        char *text = explain(g, o);
        assert_contains(text, "\n  122 x fused_allreduce_rmsnorm of 7168 columns: ");
        assert_contains(text, cases[c].text);
        pz_free(text);
        assert_int_equal(unsetenv("PREZERO_ONE_SHOT") | unsetenv("PREZERO_NCCL"), 0);
    }
    /* the CPU has no such kernels, and one rank nothing to add up */
    char *text = explain(g, (pz_explain_options){.device = "cpu"});
    assert_null(strstr(text, "one-shot"));
    pz_free(text);
    text = explain(g, (pz_explain_options){.ranks = 1, .with_plan = 1});
    assert_null(strstr(text, "one-shot"));
    pz_free(text);
    pz_graph_free(g);
    pz_error err;
    pz_explain_options bad = {.size = sizeof bad, .ranks = -1};
    g = support_graph(support_layer_text);
    assert_fails(pz_explain(g, &bad, &text, &err), PZ_E_INVAL, &err, "ranks is -1");
    pz_graph_free(g);
}

static void test_text(void **state) {
    (void)state;
    pz_graph *g = config_graph(PZ_SOURCE_DIR "/tests/data/configs/kimi-k2", 4);
    static const int batches[] = {16, 48};
    char *text = explain(g, (pz_explain_options){.batches = batches, .n_batches = 2});
    assert_contains(text, "qkv_a | q_b | o_proj");
    assert_contains(text, "buckets on h200 (132 units)");
    assert_contains(text, "m = 16: ");
    assert_contains(text, "60 x input_layernorm (fused_allreduce_rmsnorm): 20 of 132 units idle, donor 4.16 us; level "
                          "3 of 3, 790528 bytes each");
    assert_contains(text, "    * 3      790528 bytes");
    assert_contains(text, "m = 48: ");
    assert_contains(text, "      lm_head: not split, so nothing to zero\n");
    assert_contains(text, "m > 48, and prompt processing: no rider and no buffer");
    assert_null(strstr(text, "plan of"));
    assert_null(strstr(text, "func @"));
    pz_free(text);

    text = explain(
        g, (pz_explain_options){.batches = batches, .n_batches = 1, .with_plan = 1, .with_graph = 1, .units = 20});
    assert_contains(text, "---- graph before ----\n");
    assert_contains(text, "---- graph after ----\n");
    assert_contains(text, "zero_fill=");
    assert_contains(text, "plan of ");
    assert_contains(text, "buckets on h200 (20 units)");
    assert_contains(text, "4 of 20 units idle");
    pz_free(text);
    pz_graph_free(g);
}

/* The text and the data say the same, for the small model too. */
static void test_cpu(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    static const int batches[] = {3};
    pz_explain_options o = {.device = "cpu", .units = 2, .batches = batches, .n_batches = 1};
    json_t *root = explain_json(g, o);
    char *text = explain(g, o), line[160];
    assert_string_equal(get_str(get(root, "device"), "name"), "cpu");
    assert_int_equal(get_int(get(root, "device"), "units"), 2);
    const json_t *b = json_array_get(get(root, "buckets"), 0);
    snprintf(line, sizeof line, "m = 3: %d launches, arena %d bytes; 3 riders zero %d bytes; proven: %d obligations",
             (int)get_int(b, "launches"), (int)get_int(b, "arena_bytes"), (int)get_int(b, "fill_bytes"),
             (int)get_int(b, "proven"));
    assert_contains(text, line);
    const json_t *slices = get(json_array_get(get(b, "fills"), 0), "slices");
    assert_int_equal(json_array_size(slices), 3);
    assert_string_equal(get_str(json_array_get(slices, 1), "name"), "q_b");
    assert_true(json_is_true(get(json_array_get(slices, 1), "active")));
    assert_true(json_is_true(get(json_array_get(slices, 1), "filled")));
    assert_int_equal(get_int(json_array_get(slices, 1), "bytes"), 768 * 4 * 3);
    pz_free(text);
    json_decref(root);
    pz_graph_free(g);
}

/* Launches and times come from a tuned table, and it is said which. */
static void test_tuned(void **state) {
    (void)state;
    char *dir = support_tmp_dir(), *path = support_path(dir, "t.json");
    pz_device d;
    pz_tuned *t;
    pz_error err;
    assert_ok(pz_device_find("h200", 0, &d, &err), &err);
    assert_ok(pz_tuned_new(&d, "", &t, &err), &err);
    pz_gemm_config skinny = {.tile_n = 16, .split = 2, .family = PZ_GEMM_SKINNY, .warps = 4, .stages = 2, .depth = 4};
    pz_tuned_row r = {.shape = {704, 256, PZ_DT_BF16, PZ_ACCUM_FIXED, 8},
                      .on = {PZ_ZERO_PREZERO, skinny, 2.5, 0.01},
                      .off = {PZ_ZERO_REDUCE, skinny, 3.75, 0.01}};
    assert_ok(pz_tuned_put(t, &r, &err), &err);
    t->gate.norm_base = 7;
    t->gate.norm_row = 0;
    assert_ok(pz_tuned_save(t, path, &err), &err);
    assert_int_equal(setenv("PREZERO_TUNED", path, 1), 0);
    pz_graph *g = support_graph(support_layer_text);
    static const int batches[] = {5, 9};
    pz_explain_options o = {.batches = batches, .n_batches = 2};
    char *text = explain(g, o), line[200];
    snprintf(line, sizeof line, "times by tuned table of h200 (%.100s, %s, kernels %s, 1 rows)", path, t->date,
             PZ_GEMM_KERNEL_VERSION);
    assert_contains(text, line);
    assert_contains(text, "  1 x input_layernorm (rms_norm): 127 of 132 units idle, donor 7.00 us; level ");
    assert_contains(text,
                    "  1 x gemm qkv_a 704x256: prezero, skinny tile_n 16, split 2, warps 4, stages 2, depth 4; tuned, "
                    "2.50 us with a zeroed output, 3.75 us without\n");
    assert_contains(text, "adds   0.000 us  replaces   1.250 us  free    qkv_a\n");
    const char *nine = strstr(text, "m = 9: "); /* above the table's rows */
    assert_non_null(nine);
    assert_null(strstr(nine, "tuned, "));
    pz_free(text);
    json_t *root = explain_json(g, o);
    assert_contains(get_str(get(root, "device"), "times_by"), "tuned table of h200");
    const json_t *gemms = get(json_array_get(get(root, "buckets"), 0), "gemms"), *first = json_array_get(gemms, 0);
    assert_int_equal(json_array_size(gemms), 5);
    assert_string_equal(get_str(first, "role"), "gemm qkv_a");
    assert_string_equal(get_str(first, "family"), "skinny");
    assert_string_equal(get_str(first, "strategy"), "prezero");
    assert_int_equal(get_int(first, "count"), 1);
    assert_int_equal(get_int(first, "warps"), 4);
    assert_int_equal(get_int(first, "depth"), 4);
    assert_true(json_is_true(get(first, "tuned")));
    assert_true(json_real_value(get(first, "off_us")) == 3.75);
    assert_true(json_is_false(get(json_array_get(gemms, 1), "tuned")));
    assert_null(json_object_get(json_array_get(gemms, 1), "on_us"));
    json_decref(root);

    /* another number of SMs: stale, and said so */
    o.units = 78;
    text = explain(g, o);
    assert_contains(text, "times by the model of h200, as all 1 rows of the tuned table (");
    assert_contains(text, "are stale: measured on h200 (132 units) with kernels " PZ_GEMM_KERNEL_VERSION
                          ", here are 78 units");
    assert_null(strstr(text, "tuned, "));
    pz_free(text);
    assert_int_equal(setenv("PREZERO_TUNED", "none", 1), 0);
    text = explain(g, o);
    assert_contains(text, "times by the model of h200, as there is no tuned table");
    pz_free(text);
    assert_int_equal(setenv("PREZERO_TUNED", dir, 1), 0);
    o.size = sizeof o;
    assert_fails(pz_explain(g, &o, &text, &err), PZ_E_IO, &err, dir);
    assert_int_equal(setenv("PREZERO_TUNED", "none", 1), 0);
    pz_graph_free(g);
    pz_tuned_free(t);
    pz_free(path);
    support_tmp_remove(dir);
}

static void test_bad_options(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    char *text = "x";
    pz_error err;
    pz_explain_options o = {0};
    assert_fails(pz_explain(g, &o, &text, &err), PZ_E_INVAL, &err, "size");
    assert_null(text);
    o = (pz_explain_options){.size = sizeof o, .device = "toaster"};
    assert_fails(pz_explain(g, &o, &text, &err), PZ_E_NOTFOUND, &err, "toaster", "h200");
    static const int same[] = {4, 4}, zero[] = {0}, huge[] = {INT32_MAX};
    o = (pz_explain_options){.size = sizeof o, .batches = same, .n_batches = 2};
    assert_fails(pz_explain(g, &o, &text, &err), PZ_E_INVAL, &err, "batch 4 (number 2)");
    o.batches = zero, o.n_batches = 1;
    assert_fails(pz_explain(g, &o, &text, &err), PZ_E_INVAL, &err, "batch 0 (number 1)");
    o.n_batches = 0;
    assert_fails(pz_explain(g, &o, &text, &err), PZ_E_INVAL, &err, "n_batches is 0");
    o.batches = huge, o.n_batches = 1;
    assert_fails(pz_explain(g, &o, &text, &err), PZ_E_RANGE, &err, "too large");
    assert_int_equal(setenv("PREZERO_GATE", "ajar", 1), 0);
    assert_fails(pz_explain(g, NULL, &text, &err), PZ_E_INVAL, &err, "PREZERO_GATE", "ajar");
    assert_int_equal(setenv("PREZERO_GATE", "closed", 1), 0);
    assert_ok(pz_explain(g, NULL, &text, &err), &err);
    assert_contains(text, "0 riders zero 0 bytes");
    assert_int_equal(unsetenv("PREZERO_GATE"), 0);
    pz_free(text);
    pz_graph_free(g);
}

typedef struct sweep {
    const pz_graph *g;
    int json;
} sweep;

static pz_status explain_once(void *ctx) {
    const sweep *s = ctx;
    static const int batches[] = {2};
    pz_explain_options o = {
        .size = sizeof o, .batches = batches, .n_batches = 1, .with_plan = 1, .with_graph = 1, .json = s->json};
    char *text;
    pz_error err;
    pz_status st = pz_explain(s->g, &o, &text, &err);
    if (st == PZ_OK) pz_free(text);
    return st;
}

static void test_memory(void **state) {
    (void)state;
    pz_graph *g = support_graph(support_layer_text);
    sweep text = {g, 0}, json = {g, 1};
    assert_true(support_alloc_sweep(explain_once, &text) > 20);
    assert_true(support_alloc_sweep(explain_once, &json) > 20);
    assert_true(support_alloc_sweep_json(explain_once, &json) > 20);
    pz_graph_free(g);
}

/* What a built-in table says changes with every run of the tuner. */
static int model_alone(void **state) {
    (void)state;
    return setenv("PREZERO_TUNED", "none", 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kimi),        cmocka_unit_test(test_reasons), cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_text),        cmocka_unit_test(test_cpu),     cmocka_unit_test(test_tuned),
        cmocka_unit_test(test_bad_options), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, model_alone, NULL);
}
