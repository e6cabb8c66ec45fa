/* SPDX-License-Identifier: Apache-2.0 */
/* From a Hugging Face directory to a graph and the weights it names. */
#ifndef PZ_MODEL_H
#define PZ_MODEL_H

#include "ir/host_weight.h"

typedef enum pz_scoring { PZ_SCORING_SIGMOID, PZ_SCORING_SOFTMAX } pz_scoring;
/* Weight quantization of the routed experts / of the linear layers. */
typedef enum pz_quant { PZ_QUANT_NONE, PZ_QUANT_MXFP4, PZ_QUANT_FP8 } pz_quant;

/* Most layers a model may have. */
enum { PZ_MAX_LAYERS = 512 };

enum { PZ_MAX_EOS = 16 };

typedef struct pz_hf_config {
    char model_type[32];
    int64_t vocab, hidden, layers, heads, intermediate, moe_intermediate;
    int64_t q_lora /* 0: absent */, kv_lora, nope, rope, v;
    int64_t experts /* 0: all dense */, shared_experts, top_k, n_group, topk_group, first_dense, moe_freq;
    int group_top; /* experts whose scores make a group's score: 2 (V3, noaux_tc) or 1 (V2, group_limited_greedy) */
    pz_scoring scoring;
    bool norm_topk, correction_bias, tied, rope_interleave;
    double routed_scale, eps;
    int64_t max_positions;
    /* rope */
    double rope_theta;
    bool yarn;
    double yarn_factor, yarn_beta_fast, yarn_beta_slow, yarn_mscale, yarn_mscale_all_dim;
    double yarn_attention_factor; /* factor on cos and sin; 0: from the two mscales */
    bool yarn_truncate;           /* the ramp's ends are rounded to whole pairs */
    int64_t yarn_original;
    double rope_linear;      /* linear scaling factor, 1 */
    int64_t bos;             /* -1 */
    int64_t eos[PZ_MAX_EOS]; /* end tokens, n_eos of them: config.json's, then generation_config.json's */
    int n_eos;
    pz_quant quant;                      /* format of the quantized weights */
    pz_quant expert_quant, linear_quant; /* `quant` if any routed expert, any other linear layer has it, else NONE */
    /* Bit r: the weight of role r (weights.def) is quantized in that layer; [layers] is what stands outside layers. */
    uint32_t quantized[PZ_MAX_LAYERS + 1];
    bool packed_names; /* compressed-tensors: weight_packed */
    char prefix[32];   /* "" or "language_model." as the configuration suggests; the loader accepts both */
} pz_hf_config;

/* Reads dir/config.json, and the end tokens of dir/generation_config.json where that is there. E_UNSUPPORTED for
 * another architecture or quantization, naming it and what is supported; E_FORMAT for missing or impossible values. */
pz_status pz_hf_config_load(const char *dir, pz_hf_config *out, pz_error *err);
pz_status pz_hf_config_parse(const char *text, size_t size, const char *where, pz_hf_config *out, pz_error *err);

/* YaRN (Peng et al. 2023, as in transformers): inverse frequencies [rope / 2], the factor on cos and sin, and the
 * softmax scale. */
void pz_rope_frequencies(const pz_hf_config *c, float *inv_freq);
double pz_rope_cos_scale(const pz_hf_config *c);
double pz_softmax_scale(const pz_hf_config *c);

/* One rank of a model that several hold together. Where a pointer to one is NULL, one rank holds the whole model. */
typedef struct pz_shard {
    int64_t tp, rank; /* rank is 0 to tp - 1 */
    pz_expert_split experts;
} pz_shard;

/* E_INVAL unless the model can be split so; names the first weight that cannot, its sizes, and the numbers of ranks
 * that would do. */
pz_status pz_shard_check(const pz_hf_config *c, const pz_shard *s, pz_error *err);

/* Entry @decode(%ids: i32[m], %pos: i32[m], %seq: i32[m]) -> logits [m, vocab / tp] of rank opts->rank: the columns
 * from rank * vocab / tp on. */
pz_status pz_model_graph(const pz_hf_config *c, const pz_model_graph_options *opts, pz_graph **out, pz_error *err);

/* ---- checkpoint ---- */
typedef struct pz_tensor {
    const char *name;
    const char *dtype; /* as the file says: "BF16", "F32", "U8", ... */
    int rank;
    int64_t shape[8];
    const unsigned char *data;
    size_t bytes;
} pz_tensor;
typedef struct pz_checkpoint pz_checkpoint;
/* model.safetensors, or model.safetensors.index.json and its shards; memory-mapped. Every header is checked: lengths,
 * offsets, overlaps, gaps, duplicates, overflow, dtype against size. */
pz_status pz_checkpoint_open(const char *dir, pz_checkpoint **out, pz_error *err);
void pz_checkpoint_close(pz_checkpoint *c);
const pz_tensor *pz_checkpoint_find(const pz_checkpoint *c, const char *name); /* NULL if absent */
int pz_checkpoint_count(const pz_checkpoint *c);
const pz_tensor *pz_checkpoint_at(const pz_checkpoint *c, int i);
/* One file's header, for fuzzing and tests: `data` is the whole file. */
pz_status pz_safetensors_parse(const unsigned char *data, size_t size, const char *where, pz_checkpoint **out,
                               pz_error *err);

/* Finds the tensors behind one weight of a rank's graph (names with and without "language_model.", quark and
 * compressed-tensors MXFP4), checks shape and dtype, and gives the rank's rows and columns of them, in place: nothing
 * is copied. E_NOTFOUND names the tensor, E_TYPE says what shape or dtype it has and should have, E_INVAL as
 * pz_shard_check. The checkpoint must outlive `out`; free with pz_host_weight_free. Any number of threads may bind from
 * one checkpoint at once. */
pz_status pz_weight_bind_shard(const pz_hf_config *c, const pz_checkpoint *ck, const pz_weight *w, const pz_shard *s,
                               pz_host_weight *out, pz_error *err);
void pz_host_weight_free(pz_host_weight *w);

/* E_FORMAT names a parameter in one of the model's layers that no weight reads: the configuration then describes less
 * than the checkpoint (shared experts left out, a bias, more experts), and the results would be wrong without a word.
 */
pz_status pz_weights_check_unused(const pz_hf_config *c, const pz_checkpoint *ck, pz_error *err);

#endif
