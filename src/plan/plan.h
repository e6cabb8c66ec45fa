/* SPDX-License-Identifier: Apache-2.0 */
/* Plan, gate and proof. A plan is the flat launch list of one bucket: every decision is in it, and whoever runs it
 * reads it there. */
#ifndef PZ_PLAN_H
#define PZ_PLAN_H

#include "ir/ir.h"
#include "prezero/kernels.h"

/* ---- device model ---- */
/* Constants of the gate, as a device's model (devices.def) or a fit to measurements (a tuned table) gives them:
 * name, meaning. Times in us. */
#define PZ_GATE_CONSTANTS(X)                                                                          \
    X(fill, "bytes that one idle unit zeroes in 1 us")                                                \
    X(handshake, "what a GEMM needs to zero its own output, beyond the fill itself")                  \
    X(norm_base, "a norm takes norm_base + norm_row * r; r: its rows on a GPU, its waves on the CPU") \
    X(norm_row, "")                                                                                   \
    X(ar_base, "the fused all-reduce takes ar_base + ar_row * rows, where no table has its ranks")    \
    X(ar_row, "")                                                                                     \
    X(rider, "what any rider adds to its donor, however small")
typedef struct pz_gate_constants {
#define PZ_GATE_FIELD(name, meaning) double name;
    PZ_GATE_CONSTANTS(PZ_GATE_FIELD)
#undef PZ_GATE_FIELD
} pz_gate_constants;

enum { PZ_DEVICE_NAME = 32 };
struct pz_tuned;
typedef struct pz_device {
    char name[PZ_DEVICE_NAME];
    bool gpu; /* runs the CUDA kernels: their geometry may depend on the rows (it changes no bit of FIXED), they keep
                 the workspaces of REDUCE and TICKET themselves, and they know every strategy */
    int sm;   /* of a GPU: 90 for compute capability 9.0, which alone has wgmma: families GROUP and WIDE */
    int units, gemm_units, tile_n, min_k; /* devices.def */
    double bandwidth;                     /* bytes per us that all units together read */
    pz_gate_constants gate;
    const struct pz_tuned *tuned; /* borrowed (pz_device_tune); NULL: models alone */
    int ranks;                    /* that collectives span; 0: not known, planned as 2 */
    int one_shot; /* rows up to which a collective takes one step; 0: as the tuned table says, else PZ_ONE_SHOT_ROWS */
    bool nccl;    /* NCCL gathers the ranks' parts */
} pz_device;
/* units 0: the table's number (this machine's processors if that is 0 too). E_NOTFOUND lists the devices. */
pz_status pz_device_find(const char *name, int units, pz_device *out, pz_error *err);
/* A GPU by the name that its driver gives it: "NVIDIA H200" is "h200"; sm: 90 for compute capability 9.0. One without a
 * row has the model of h200 under its own name. */
void pz_device_gpu(const char *product, int sm, int units, pz_device *out);

/* Collectives over so many ranks, as knobs ONE_SHOT and NCCL say; through NCCL also where the backend has set
 * dev->nccl. */
pz_status pz_device_group(pz_device *dev, int ranks, pz_error *err);

const char *pz_strategy_text(pz_strategy s);
bool pz_strategy_adds(pz_strategy s);
bool pz_strategy_from_text(const char *s, pz_strategy *out);
/* A word of knob STRATEGY for pz_plan_options.strategy. */
enum { PZ_STRATEGY_AUTO = -1 };
bool pz_strategy_option(const char *word, int *out);
const char *pz_gemm_family_text(int family);
bool pz_gemm_family_from_text(const char *s, int *out);

/* ---- how a GEMM is launched ---- */
typedef struct pz_gemm_shape {
    int64_t n, k;
    pz_dtype weight;
    pz_accum accum;
    int m;
} pz_gemm_shape;

typedef struct pz_gemm_choice {
    pz_strategy strategy;
    pz_gemm_config config;
    double us, ci; /* median and half of its 95 % confidence interval as measured; 0 where nothing was */
} pz_gemm_choice;

typedef struct pz_gemm_choices {
    pz_gemm_choice on;  /* where an earlier kernel can zero the output: PREZERO or NONE */
    pz_gemm_choice off; /* where none can: anything but PREZERO */
    bool tuned;         /* from the tuned table, else from a model */
} pz_gemm_choices;

/* From the device's tuned table; without a row from the cost model of GPUs, or the CPU's rule (pz_gemm_configure). */
pz_gemm_choices pz_gemm_choose(const pz_device *dev, const pz_gemm_shape *shape);

/* The CPU's geometry. Depends on (n, k, weight dtype) alone, never on the rows or the number of threads, so that the
 * bits of a row never depend on them either. split 1: not split. Split s covers k in [pz_split_begin(k, split, s),
 * pz_split_begin(k, split, s + 1)). */
pz_gemm_config pz_gemm_configure(const pz_device *dev, int64_t n, int64_t k, pz_dtype weight);
/* Multiples of 32 (an mxfp4 block), the last split takes the rest. */
int64_t pz_split_begin(int64_t k, int split, int s);

/* ---- how a donor or a collective is launched ---- */
/* How ranks of a GPU add up: enum suffix, text. */
#define PZ_COLLECTIVE_TABLE(X)                                                          \
    X(NONE, "none")         /* not on a GPU, or nothing to add up */                    \
    X(ONE_SHOT, "one-shot") /* every rank sends its rows to all others */               \
    X(TWO_STEP, "two-step") /* each row is added up by one rank, which sends the sum */ \
    X(NCCL, "nccl")         /* NCCL gathers the rows of all ranks, a kernel of ours adds them */
typedef enum pz_collective {
#define PZ_COLLECTIVE_ENUM(id, text) PZ_COLLECTIVE_##id,
    PZ_COLLECTIVE_TABLE(PZ_COLLECTIVE_ENUM)
#undef PZ_COLLECTIVE_ENUM
} pz_collective;
const char *pz_collective_text(pz_collective kind); /* "one-shot" */

/* A norm or a collective, with or without a norm, of m rows. The backend reads one_shot here. */
typedef struct pz_donor {
    pz_collective kind; /* of its first launch, where its rows are those of several */
    int one_shot;       /* rows up to which it is ONE_SHOT; 0: no collective */
    int m, blocks;      /* rows; on a GPU, blocks that take them at the same time: several a row, or rows in turn */
    double us, rider;   /* of a norm or a collective with a norm; what any rider adds */
} pz_donor;
/* By the tuned table of the device, else by its model. hidden: of the collective's rows. */
pz_donor pz_donor_of(const pz_device *dev, int m, bool collective, int64_t hidden);

/* ---- gate ---- */
/* Verdicts, their texts and the numbers are public: prezero/kernels.h. */
typedef enum pz_gate_mode {
    PZ_GATE_AUTO,
    PZ_GATE_STRICT,
    PZ_GATE_OPEN,
    PZ_GATE_SHUT
} pz_gate_mode; /* order of knob GATE's words */

/* The rider of a GPU's donor: blocks of its own beside those that take rows (`busy`), at most one a unit, first on
 * units without one. The launch, the gate and the fit of its constants take it from here. A block stores so many bytes:
 * blocks that wait for the kernel before are in the way of the one behind, so there are few. */
enum { PZ_RIDER_BLOCK = 6 * 8192 };
typedef struct pz_rider {
    int blocks;
    double busiest; /* bytes of one block at most */
    double beside;  /* bytes a unit, of all units, that blocks on busy units store */
} pz_rider;
pz_rider pz_rider_of(int busy, int64_t bytes, int units);

/* bytes and slices of the level asked about.
 *
 * On a GPU the donor's blocks are resident together with the rider's: those on units without one of the donor's add
 * what outlasts the donor, those beside rows take their time from them. The rider of a collective is on units without
 * one alone, or the collective's blocks store it while they wait (pz_group_rider): that adds what outlasts it.
 *
 * The CPU runs m rows in ceil(m / units) waves, and only the last wave leaves units idle. Hiding the fill there adds
 * what exceeds the time they have; doing it on all units after the rows adds all of it. The smaller of the two is taken
 * (without idle units the second).
 *
 * On both `rider` comes on top. FREE: nothing is added. PAYS: less than what is replaced, a handshake a slice and the
 * same fill on all units. */
pz_gate_result pz_gate_evaluate(const pz_device *dev, const pz_donor *donor, int64_t bytes, int slices);
/* The same where it is known what zeroing otherwise takes: replaced_us. */
pz_gate_result pz_gate_weigh(const pz_device *dev, const pz_donor *donor, int64_t bytes, double replaced_us);
/* What zeroing `slices` outputs of together `bytes` inside their GEMMs takes by the constants. */
double pz_gate_replaced(const pz_device *dev, int64_t bytes, int slices);

/* ---- plan ---- */
/* Storage of one value (or of x_norm, of a buffer, of a workspace). Offsets are bytes in the plan's arena, multiples of
 * 64. Element (r, c) lies at offset + (r * ld + col + c) * element size, for views too: a slice of %x has the offset,
 * bytes and ld of %x and says with col where it begins; a GEMM output in a buffer has the offset of its slice, col 0
 * and its own ld. */
typedef struct pz_place {
    const char *name;   /* "%x", "mla_attention.0/%q", "%x.norm", "gemm 12 workspace" */
    pz_type type;       /* with m still symbolic */
    const pz_value *ir; /* NULL for norms and workspaces */
    int root;           /* place whose memory this is a view of; itself otherwise */
    int64_t offset, bytes;
    int64_t col, ld; /* first column, columns of one stored row */
    int norm;        /* place of this value's x_norm (f32 [m]), -1 */
    int first, last; /* launches between which the memory is this value's; -1 / n_launches: input / output */
    /* FIXED only: the value is acc * 2^-30 * x_norm[m] * w_norm[scale_col + n] */
    int scale_norm; /* place of the x_norm of the GEMM's x */
    const pz_weight *scale_weight;
    int64_t scale_col;
} pz_place;

typedef struct pz_operand {
    int place;               /* -1: absent or a weight */
    const pz_weight *weight; /* NULL: not a weight */
} pz_operand;

enum { PZ_MAX_OPERANDS = 8, PZ_MAX_RESULTS = 3 };

typedef struct pz_launch {
    const pz_node *node;
    pz_op op;
    const char *role;               /* what profiles and plans call it: "gemm qkv_a", "router" */
    int layer;                      /* from its weights' names or its layer attribute, else that of the launch before */
    pz_operand in[PZ_MAX_OPERANDS]; /* by the op's operand index; buffers do not appear as operands */
    int out[PZ_MAX_RESULTS];        /* places by the op's result index; -1 */
    pz_gemm_config gemm;
    pz_accum accum;
    pz_strategy strategy;    /* GEMM: how its output starts at zero */
    pz_gemm_choices choices; /* GEMM: what gemm and strategy were chosen from */
    int slice;               /* GEMM with PREZERO: index into slices, else -1 */
    int fill;                /* donor: index into fills (its bytes are 0 at level 0), -1 */
    pz_donor donor;          /* donor or collective */
    int workspace;           /* place, -1 */
    bool waits;              /* reads or overwrites what an earlier launch wrote or reads: griddepcontrol.wait first */
} pz_launch;

/* One consumer's slice of a donor's buffer. */
typedef struct pz_slice {
    const char *name;
    int fill, consumer;    /* index into fills; launch, -1: nobody takes it */
    int64_t offset, bytes; /* in the arena; bytes is a multiple of 64; valid if filled */
    bool active;           /* its GEMM adds in this bucket */
    bool filled;           /* within the level: the donor writes the zeros, the GEMM skips them */
} pz_slice;

/* Why a slice is not active: "not split, so nothing to zero", ...; "" if it is. Static string. */
struct pz_plan;
const char *pz_slice_inactive_reason(const struct pz_plan *p, const pz_slice *s);

typedef struct pz_fill {
    int donor;                                  /* launch */
    int place;                                  /* the buffer's place, -1 at level 0 */
    int64_t offset, bytes;                      /* what the donor zeroes */
    int first_slice, n_slices, n_active, level; /* level: how many active slices are filled */
    PZ_VEC(pz_gate_result) gates;               /* of level 1..n_active */
} pz_fill;

typedef struct pz_plan {
    pz_arena arena;
    const pz_graph *graph; /* borrowed, must outlive the plan */
    pz_device device;
    int m;
    bool prefill;
    pz_gate_mode gate_mode;
    int64_t arena_bytes, fill_bytes;
    PZ_VEC(pz_place) places;
    PZ_VEC(pz_launch) launches;
    PZ_VEC(pz_slice) slices;
    PZ_VEC(pz_fill) fills;
    PZ_VEC(int) inputs;  /* places of the entry's parameters */
    PZ_VEC(int) outputs; /* places of its returns */
    int proven;          /* obligations shown by the checker */
} pz_plan;

/* Of a GEMM. */
pz_gemm_shape pz_launch_shape(const pz_plan *p, const pz_launch *la);

typedef struct pz_plan_options {
    pz_device device;
    int m;        /* rows */
    bool prefill; /* or above the largest bucket: no rider, no buffer */
    pz_gate_mode gate;
    int strategy; /* of split GEMMs that are not prezeroed: PZ_STRATEGY_AUTO as the tuned table or the model says (the
                     CPU: SELF); SELF, REDUCE, NONE (not split at all), on a GPU also TICKET and MEMSET */
} pz_plan_options;

/* Plans and proves; E_PROOF would be a bug of the planner and is never ignored. */
pz_status pz_plan_create(const pz_graph *g, const pz_plan_options *opts, pz_plan **out, pz_error *err);
void pz_plan_free(pz_plan *p);

/* The checker: shares no code with the planner. Shows, for every GEMM that skips its zeroing, a fill that covers
 * exactly its bytes, ordered before it, with no other access to them between; for every fill, that each of its bytes is
 * a consumer's; for all places, that what is read was written and not overwritten since. Sets p->proven. E_PROOF says
 * which obligation failed, with launch numbers. */
pz_status pz_plan_prove(pz_plan *p, pz_error *err);

/* Byte ranges a launch touches, for the checker and for debug modes. */
typedef enum pz_access_kind { PZ_READ, PZ_WRITE, PZ_FILL, PZ_ACCUMULATE } pz_access_kind;
typedef struct pz_access {
    pz_access_kind kind;
    int64_t offset, bytes;
    int place;
} pz_access;
enum { PZ_MAX_ACCESSES = 32 };
int pz_launch_accesses(const pz_plan *p, int launch, pz_access out[PZ_MAX_ACCESSES]);

pz_status pz_plan_text(const pz_plan *p, char **out, pz_error *err);

#endif
