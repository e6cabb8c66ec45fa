/* SPDX-License-Identifier: Apache-2.0 */
/* The decode engine: a loaded checkpoint, sequences with a paged cache, and steps of up to max_batch rows.
 *
 * Ownership: an engine or tokenizer belongs to the caller; every sequence belongs to its engine.
 * Threads: one engine is used by one thread at a time (its kernels use several threads inside). A tokenizer is
 * immutable after opening and may be shared. */
#ifndef PREZERO_ENGINE_H
#define PREZERO_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "prezero/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizer ---- */
typedef struct pz_tokenizer pz_tokenizer;

/* Reads `dir`/tokenizer.json (byte-level BPE) and, if there, tokenizer_config.json (add_bos_token). */
PZ_API pz_status pz_tokenizer_open(const char *dir, pz_tokenizer **out, pz_error *err);
PZ_API void pz_tokenizer_close(pz_tokenizer *tok);
/* Encodes UTF-8 text of `size` bytes. add_bos: 1 puts the begin token first where the tokenizer's configuration asks
 * for it, 0 never. *ids (pz_free) holds *n ids. Added tokens inside the text are recognised. E_FORMAT on invalid UTF-8,
 * with the byte offset. */
PZ_API pz_status pz_tokenizer_encode(const pz_tokenizer *tok, const char *text, size_t size, int add_bos, int32_t **ids,
                                     size_t *n, pz_error *err);
/* Decodes ids to text (pz_free); special tokens are left out when skip_special is 1. Bytes that do not form UTF-8 come
 * out as U+FFFD; an id without a token (a model may have more rows than its tokenizer has tokens) as nothing. E_RANGE
 * for negative ids. */
PZ_API pz_status pz_tokenizer_decode(const pz_tokenizer *tok, const int32_t *ids, size_t n, int skip_special,
                                     char **text, pz_error *err);
PZ_API int pz_tokenizer_vocab_size(const pz_tokenizer *tok);

/* Streaming decoder: never emits a part of a UTF-8 character; leaves special tokens out. All of it together is what
 * pz_tokenizer_decode gives with skip_special 1. */
typedef struct pz_detokenizer pz_detokenizer;
PZ_API pz_status pz_detokenizer_new(const pz_tokenizer *tok, pz_detokenizer **out, pz_error *err);
/* Adds one id; *text (valid until the next call) is what can now be shown, possibly "". */
PZ_API pz_status pz_detokenizer_push(pz_detokenizer *d, int32_t id, const char **text, pz_error *err);
/* Flushes what is held back (an incomplete character becomes U+FFFD). */
PZ_API pz_status pz_detokenizer_finish(pz_detokenizer *d, const char **text, pz_error *err);
PZ_API void pz_detokenizer_free(pz_detokenizer *d);

/* ---- engine ---- */
typedef struct pz_engine pz_engine;

/* Zero-initialise, then set `size`; 0 or NULL means the default given. */
typedef struct pz_engine_options {
    size_t size;
    int prezero;          /* 1 on, 0 off, -1 as the environment variable PREZERO says */
    pz_accum accum;       /* default FIXED */
    pz_act act;           /* default BF16 */
    int threads;          /* 0: knob PREZERO_THREADS, else the online processors */
    int max_batch;        /* largest decode bucket; default 128 */
    int prefill_chunk;    /* rows of one prompt-processing step; default 128 */
    int max_sequences;    /* sequences open at once; default max_batch */
    int context;          /* tokens a sequence may hold; default min(model's maximum, 4096) */
    const char *strategy; /* zero-init of GEMMs that are not prezeroed: "auto" (as the tuned table of the device says,
                             on the CPU "self"), "self", "reduce", "none", on a GPU "ticket" and "memset"; default: knob
                             PREZERO_STRATEGY, else "auto" */
    const char *gate;     /* "auto" (default: knob PREZERO_GATE), "strict", "open", "closed" */
    int profile;          /* 1: time every launch (pz_engine_profile) */
    const char *device;   /* "cpu"; "cuda" or "cuda:N", an NVIDIA GPU by number; "auto": cuda if there is a GPU that
                             this build has kernels for, else cpu. Default: knob PREZERO_DEVICE, else "cpu" */
    int tp; /* tensor-parallel ranks, threads of this process; 1 to 8, default 1. Each has its share of the
               weights; on the CPU they share `threads`, on GPUs rank r has device N + r */
    pz_expert_split experts; /* what a rank has of the routed experts */
    int rank_timeout_ms;     /* ranks that wait longer for another end with E_TIMEOUT; default 30000 */
} pz_engine_options;

/* E_UNSUPPORTED says why a device cannot be had: built without it, no driver, no such GPU, another architecture. */
PZ_API pz_status pz_engine_open(const char *dir, const pz_engine_options *opts, pz_engine **out, pz_error *err);
PZ_API void pz_engine_close(pz_engine *engine);

typedef struct pz_engine_info {
    int vocab, layers, hidden, context, threads /* SMs on a GPU */, prezero;
    int bos, eos; /* token ids, -1 if the model names none; of several end tokens the first */
    int64_t weight_bytes, cache_bytes, arena_bytes;
    double load_seconds;
    char isa[16];                                  /* instruction set in use, such as "avx512" or "sm_90" */
    char device[80];                               /* "cpu", "cuda:0 (NVIDIA H200)" */
    int64_t device_used_bytes, device_total_bytes; /* memory of the GPUs: of this engine, in all; 0 on the CPU */
    int tp;                                        /* ranks; bytes are those of all together, threads those of one */
} pz_engine_info;
PZ_API void pz_engine_get_info(const pz_engine *engine, pz_engine_info *info);

/* The buckets with prepared plans, ascending; *n of them. Valid until close. */
PZ_API const int *pz_engine_buckets(const pz_engine *engine, int *n);
/* Text of the plan of the bucket that serves `rows` decode rows (pz_free). */
PZ_API pz_status pz_engine_plan_text(const pz_engine *engine, int rows, char **out, pz_error *err);

/* Opens a sequence: an empty cache. *seq is its number, free again after close. E_RANGE when all are in use. */
PZ_API pz_status pz_seq_open(pz_engine *engine, int *seq, pz_error *err);
PZ_API void pz_seq_close(pz_engine *engine, int seq);
PZ_API int pz_seq_length(const pz_engine *engine, int seq);

/* One row of a step: the next token of a sequence. Rows of one sequence follow each other in order. */
typedef struct pz_row {
    int32_t seq;
    int32_t token;
} pz_row;

/* Runs one step of n rows (1 <= n <= max(max_batch, prefill_chunk)). Every row's token is appended to its sequence.
 * logits, if not NULL, is f32 [n, vocab]. A step in which every sequence has one row is a decode step and uses the plan
 * of the smallest bucket >= n; any other is prompt processing, planned without riders. On error no sequence has moved.
 * Where there are several ranks, the error of one ("rank 2: ...") ends all, and every later step is E_PEER or
 * E_TIMEOUT. */
PZ_API pz_status pz_engine_step(pz_engine *engine, const pz_row *rows, int n, float *logits, pz_error *err);

/* Appends n tokens to one sequence in chunks. logits, if not NULL, receives f32 [n, vocab] (all == 1) or f32 [vocab] of
 * the last token (all == 0). */
PZ_API pz_status pz_engine_prefill(pz_engine *engine, int seq, const int32_t *ids, size_t n, int all, float *logits,
                                   pz_error *err);

/* ---- sampling and generation ---- */
typedef struct pz_sampling {
    float temperature; /* 0: greedy (the lowest id wins a tie) */
    float top_p;       /* 0 or 1: off */
    int top_k;         /* 0: off */
    uint64_t seed;
} pz_sampling;

/* Chooses a token from f32 logits [vocab]. *state is the generator's state (start it with the seed). NaN logits never
 * win; E_RANGE when no logit is finite. */
PZ_API pz_status pz_sample(const float *logits, int vocab, const pz_sampling *how, uint64_t *state, int32_t *token,
                           pz_error *err);

typedef struct pz_request {
    const int32_t *prompt;
    size_t prompt_len;
    int max_tokens;
    pz_sampling sampling;
    int ignore_eos;
} pz_request;

/* Called after each new token of request `index`; last is 1 with its final one (token is -1 if it ended by the end
 * token, which is not reported). Return non-zero to stop that request. */
typedef int (*pz_token_fn)(void *user, int index, int32_t token, int last);

/* Serves n requests, up to `batch` at once, starting new ones as others end (continuous batching). Results do not
 * depend on `batch` with the FIXED accumulator. */
PZ_API pz_status pz_generate(pz_engine *engine, const pz_request *requests, int n, int batch, pz_token_fn fn,
                             void *user, pz_error *err);

/* ---- measuring ---- */
typedef struct pz_profile_row {
    char op[32]; /* op kind, a GEMM with its weight's role: "gemm qkv_a" */
    int layer;   /* -1: outside the layers */
    int64_t calls;
    double seconds;
} pz_profile_row;
/* Copies the times gathered since the last reset; *rows by pz_free. Empty unless options.profile. */
PZ_API pz_status pz_engine_profile(pz_engine *engine, int reset, pz_profile_row **rows, int *n, pz_error *err);

/* a and b are what is compared (off, on). Medians of paired, interleaved steps; ci_* is the 95 % confidence interval of
 * the median of the paired difference b - a. */
typedef struct pz_compare_bucket {
    int batch, steps;
    double a_us, b_us;                  /* median time of one decode step */
    double diff_us, ci_lo_us, ci_hi_us; /* b - a */
    double a_tokens_per_s, b_tokens_per_s;
    int identical;                     /* every logit of every step equal bit by bit */
    int riders, slices, active_slices; /* of b's plan: donors that fill, slices filled, slices that could be */
} pz_compare_bucket;
typedef struct pz_compare_op {
    int batch;
    char op[32];
    double a_us, b_us, diff_us, ci_lo_us, ci_hi_us; /* per layer and step */
} pz_compare_op;
typedef struct pz_compare_result {
    pz_compare_bucket *buckets;
    int n_buckets;
    pz_compare_op *ops;
    int n_ops;
} pz_compare_result;
/* Runs `steps` interleaved decode steps of both engines (same checkpoint) at each batch size. */
PZ_API pz_status pz_compare(pz_engine *a, pz_engine *b, const int *batches, int n_batches, int steps,
                            pz_progress_fn progress, void *user, pz_compare_result *result, pz_error *err);
PZ_API void pz_compare_result_free(pz_compare_result *result);

/* What is tuned, and where to. Zero-initialise, then set `size`; 0 or NULL means the default given. */
typedef struct pz_tune_options {
    size_t size;
    const char *model; /* directory with a config.json: the GEMMs of its decode graph; weights are not read */
    int tp; /* tensor-parallel ranks; default 1. Of that graph; and with 2 or more, and so many GPUs from `device` on,
               the all-reduce over them is tuned too, with rows as wide as the model's, or 7168 */
    const char *shapes; /* instead of a model: "2112,7168;384,7168", each N,K of a GEMM y[m,N] = x[m,K] w[N,K]^T */
    int accums; /* accumulators, bit 1 << PZ_ACCUM_x each; default FIXED. Where a model's GEMM cannot have FIXED,
                   as nothing gives it x_norm, it is F32 */
    const int *batches; /* rows of the steps; default 1, 2, 4, ..., 128 */
    int n_batches;
    int device;       /* number of the GPU */
    const char *path; /* of the table; default tuned/DEVICE.json. Rows of the file for other shapes and batches stay */
    int resume;       /* 1: rows that the file has are not measured again */
    int quick;        /* 1: fewer candidates, shorter measurements */
    const char *command;     /* what was typed, for the table's header */
    pz_progress_fn progress; /* done and total are hundredths of rows */
    void *user;
} pz_tune_options;
typedef struct pz_tune_result {
    char *path, *summary; /* where the table is; a text table of what was chosen */
    int rows, kept;       /* measured; there already */
    int failed;           /* shapes and batches for which no launch works */
    int wrong;            /* launches that gave a wrong result and were refused */
    int stale;            /* rows of the file for another device or version of the kernels, dropped */
} pz_tune_result;
/* Measures, for each GEMM and number of rows, which kernel, geometry and zero-init strategy is the fastest, with and
 * without a zeroed output, fits the gate's constants, and writes the table after every row, beside the file first. Of
 * the all-reduce, up to how many rows one step is the faster way, and what it takes; the summary says so, or why not.
 * E_UNSUPPORTED without a GPU; E_FORMAT for a file that is no table. */
PZ_API pz_status pz_tune(const pz_tune_options *opts, pz_tune_result *result, pz_error *err);
PZ_API void pz_tune_result_free(pz_tune_result *result);

typedef struct pz_eval_item {
    char *question, *expected, *output, *answer; /* answer: what follows the last "####" of output, trimmed */
    int correct;
} pz_eval_item;
typedef struct pz_eval_result {
    pz_eval_item *items;
    int n, correct;
    int64_t prompt_tokens, new_tokens;
    double seconds;
} pz_eval_result;
/* Reads JSON lines {"question":..., "answer":"... #### X"}, prompts "Question: {question}\nAnswer:", generates greedily
 * up to max_tokens, and counts exact matches of the answer. E_FORMAT names the line. limit 0: all. */
PZ_API pz_status pz_eval(pz_engine *engine, const pz_tokenizer *tok, const char *path, int batch, int max_tokens,
                         int limit, pz_progress_fn progress, void *user, pz_eval_result *result, pz_error *err);
PZ_API void pz_eval_result_free(pz_eval_result *result);

/* Writes one f32 tensor [rows, cols] as a safetensors file, beside it first, then renamed. */
PZ_API pz_status pz_write_safetensors(const char *path, const char *name, const float *data, int64_t rows, int64_t cols,
                                      pz_error *err);
/* Writes text the same way. */
PZ_API pz_status pz_write_text(const char *path, const char *text, pz_error *err);
/* Reads a whole file (pz_free, NUL appended). E_IO names path and reason; E_RANGE above 128 MiB. */
PZ_API pz_status pz_read_text(const char *path, char **text, size_t *size, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
