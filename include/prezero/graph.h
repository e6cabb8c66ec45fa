/* SPDX-License-Identifier: Apache-2.0 */
/* The graph compiler: text in and out, passes, plans, proof. Needs no weights and no device.
 *
 * Ownership: a pz_graph belongs to the caller and is released with pz_graph_free. Strings returned through
 * `char **out` are released with pz_free.
 * Threads: distinct graphs may be used by distinct threads; one graph is not to be used by two at once. */
#ifndef PREZERO_GRAPH_H
#define PREZERO_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "prezero/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pz_graph pz_graph;

/* How a split-K GEMM adds up its partial sums (design: accumulators are a property of the GEMM).
 * FIXED is bit-exact whatever the order of the adds; F32 and BF16 round at every add. */
typedef enum pz_accum { PZ_ACCUM_FIXED = 0, PZ_ACCUM_F32 = 1, PZ_ACCUM_BF16 = 2 } pz_accum;

/* Data type of activations between kernels. */
typedef enum pz_act { PZ_ACT_BF16 = 0, PZ_ACT_F32 = 1 } pz_act;

/* Parses graph text (docs/ir.md). `name` is used in messages ("name:line:column: ..."). E_PARSE, E_TYPE,
 * E_VERIFY, E_NOMEM. The text need not be NUL terminated. */
PZ_API pz_status pz_graph_parse(const char *text, size_t size, const char *name, pz_graph **out, pz_error *err);
/* Prints the canonical text; pz_graph_parse of it gives an equal graph. */
PZ_API pz_status pz_graph_print(const pz_graph *graph, char **out, pz_error *err);
/* GraphViz text: donors, riders and slices are coloured, the zero-fill edges drawn apart. */
PZ_API pz_status pz_graph_dot(const pz_graph *graph, char **out, pz_error *err);
PZ_API pz_status pz_graph_verify(const pz_graph *graph, pz_error *err);
PZ_API pz_status pz_graph_clone(const pz_graph *graph, pz_graph **out, pz_error *err);
PZ_API void pz_graph_free(pz_graph *graph);

/* How the routed experts of a layer are split over the ranks of a model: every rank holds a slice of each expert's
 * width, or whole experts, in order. */
typedef enum pz_expert_split { PZ_EXPERTS_BY_WIDTH = 0, PZ_EXPERTS_BY_EXPERT = 1 } pz_expert_split;

/* How to build a decode graph from a Hugging Face config.json. Zero-initialise, then set `size`. */
typedef struct pz_model_graph_options {
    size_t size;    /* sizeof(pz_model_graph_options) */
    int tp;         /* tensor-parallel ranks; 0 means 1 */
    pz_accum accum; /* accumulator of GEMMs; FIXED falls back to F32 where no producer gives x_norm */
    pz_act act;     /* activation dtype */
    int inlined;    /* 1: attention is written into the main function instead of an opaque function */
    int rank;       /* whose graph, 0 to tp - 1; those of all ranks are equal unless experts are split by expert */
    pz_expert_split experts;
} pz_model_graph_options;

/* Builds one rank's decode graph of the model described by `dir`/config.json (DeepSeek-V2/V3, Kimi-K2/K2.5).
 * No weights are read. The graph is as a model author writes it: no pass has run. */
PZ_API pz_status pz_graph_from_config(const char *dir, const pz_model_graph_options *opts, pz_graph **out,
                                      pz_error *err);

/* Runs a comma-separated list of passes in order ("fuse_allreduce_rmsnorm,dce,prezero"); NULL runs the standard
 * pipeline with prezero. The graph is verified after each pass; on error it is left as it was before the
 * failing pass. `report`, if not NULL, receives text: one line a pass with its counts, then donors, slices and the
 * reason of each consumer that was not converted. */
PZ_API pz_status pz_graph_run_passes(pz_graph *graph, const char *passes, char **report, pz_error *err);

/* What `prezero explain` shows. Zero-initialise, then set `size`. */
typedef struct pz_explain_options {
    size_t size;
    const char *device; /* row of the device table: "h200", "cpu"; NULL means "h200" */
    int units; /* execution units (threads, SMs); 0: the device's own number, for "cpu" this machine's processors */
    int ranks; /* that collectives span; 0: not known, explained as 2 */
    const int *batches; /* buckets to plan for, ascending; NULL means 1,2,4,...,128 */
    int n_batches;
    int with_plan;  /* 1: print each bucket's launch list too (text form only) */
    int with_graph; /* 1: print the graph before and after the pipeline (text form only) */
    int json;       /* 1: JSON object instead of text */
} pz_explain_options;

/* Runs the standard pipeline on a copy of `graph`, plans and proves every bucket, and describes the result: donors,
 * slices, reasons, levels and gate per bucket, bytes, proof. */
PZ_API pz_status pz_explain(const pz_graph *graph, const pz_explain_options *opts, char **out, pz_error *err);

/* Tables of the library as text, for `prezero ops` and `prezero knobs`; json != 0 gives a JSON array. */
PZ_API pz_status pz_describe_ops(int json, char **out, pz_error *err);
PZ_API pz_status pz_describe_passes(int json, char **out, pz_error *err);
PZ_API pz_status pz_describe_knobs(int json, char **out, pz_error *err);

#ifdef __cplusplus
}
#endif
#endif
