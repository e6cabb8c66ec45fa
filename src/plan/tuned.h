/* SPDX-License-Identifier: Apache-2.0 */
/* The tuned table of a device: what was measured to be the fastest launch of a GEMM, for every shape and bucket, and
 * the constants of the gate. A table says for which kernels and on which device it was measured; on any other its rows
 * are stale: they are counted and never used. */
#ifndef PZ_TUNED_H
#define PZ_TUNED_H

#include "plan/plan.h"

typedef struct pz_tuned_row {
    pz_gemm_shape shape; /* the key; m is the largest number of rows that it serves */
    pz_gemm_choice on, off;
    double cublaslt_us; /* the best of cuBLASLt in the same run, 0: not measured */
} pz_tuned_row;

/* The fused all-reduce of so many ranks over rows of `hidden`. */
typedef struct pz_tuned_collective {
    int ranks, hidden;      /* the key */
    int one_shot;           /* rows up to which one step is not slower than two */
    double ar_base, ar_row; /* m rows take ar_base + ar_row * m, us */
    double rider;           /* what any rider adds, us */
} pz_tuned_collective;

/* Constants of the gate that the table gives; NaN: not measured, the device's model stays. */
typedef struct pz_tuned {
    char device[PZ_DEVICE_NAME];
    int units;
    char *source;                   /* "built in" or the file, for messages */
    char *kernels, *date, *command; /* version of the kernels; "2026-01-31"; what was typed */
    pz_gate_constants gate;
    PZ_VEC(pz_tuned_row) rows;               /* sorted by n, k, weight, accum, m */
    PZ_VEC(pz_tuned_collective) collectives; /* sorted by ranks, hidden */
    int stale;                               /* rows that were read and are not used */
    int stale_collectives;                   /* the same of collectives */
} pz_tuned;

/* An empty table for this device and these kernels. */
pz_status pz_tuned_new(const pz_device *dev, const char *command, pz_tuned **out, pz_error *err);
/* Reads the text of a table. E_FORMAT names the row and the key. Rows for another device, number of units or version of
 * the kernels are checked like all others, then dropped and counted, and so are the gate's constants. Collectives name
 * the version of their own kernel (PZ_REDUCE_KERNEL_VERSION), each. */
pz_status pz_tuned_parse(const char *text, size_t size, const char *source, const pz_device *dev, pz_tuned **out,
                         pz_error *err);
pz_status pz_tuned_load(const char *path, const pz_device *dev, pz_tuned **out, pz_error *err);
/* The table that knob PREZERO_TUNED names, else the one that was built in. *out is NULL where there is none or the knob
 * says none. */
pz_status pz_tuned_open(const pz_device *dev, pz_tuned **out, pz_error *err);
void pz_tuned_free(pz_tuned *t);

/* Text of the table: sorted, one row a line. What parse reads from it prints as the same text. */
pz_status pz_tuned_text(const pz_tuned *t, char **out, pz_error *err);
/* Writes it beside the file first, then renames. */
pz_status pz_tuned_save(const pz_tuned *t, const char *path, pz_error *err);

/* The row of exactly this shape is replaced or added. E_INVAL for a row that parse would refuse. */
pz_status pz_tuned_put(pz_tuned *t, const pz_tuned_row *row, pz_error *err);
/* The row that serves a shape: of the same n, k, weight and accum the one with the smallest m that is not below the
 * shape's; NULL if there is none. */
const pz_tuned_row *pz_tuned_find(const pz_tuned *t, const pz_gemm_shape *shape);
const pz_tuned_row *pz_tuned_exact(const pz_tuned *t, const pz_gemm_shape *shape);

/* The row of exactly these ranks and this width is replaced or added. E_INVAL for one that parse would refuse. */
pz_status pz_tuned_put_collective(pz_tuned *t, const pz_tuned_collective *row, pz_error *err);
/* Of the same ranks the one with the smallest hidden that is not below, else the widest; NULL if there is none. */
const pz_tuned_collective *pz_tuned_collective_find(const pz_tuned *t, int ranks, int64_t hidden);
const pz_tuned_collective *pz_tuned_collective_exact(const pz_tuned *t, int ranks, int hidden);

/* The device decides by the table from now on: its rows and its constants. NULL, or one whose rows are all stale,
 * changes no decision. The table must outlive the device and every plan made for it. */
void pz_device_tune(pz_device *dev, const pz_tuned *t);

/* Tables that were built in: the files tuned/NAME.json. The last row has no name. */
typedef struct pz_builtin_table {
    const char *name;
    const unsigned char *text;
    size_t size;
} pz_builtin_table;
extern const pz_builtin_table pz_builtin_tables[];

#endif
