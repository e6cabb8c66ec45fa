/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and the error record shared by every public function.
 *
 * Convention: a function that can fail returns pz_status, 0 is success. Its last parameter is an optional
 * `pz_error *err` (NULL is allowed) that receives the code and one line saying what was wrong, where, and
 * what would be right. On success *err is left untouched. A pointer that is needed and NULL is E_INVAL; functions
 * without a status do nothing then, or return 0, -1 or NULL. The library never prints, exits or aborts. */
#ifndef PREZERO_STATUS_H
#define PREZERO_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PZ_API __attribute__((visibility("default")))
#else
#define PZ_API
#endif

/* One row a status: enum suffix, value, text. The values are part of the ABI. */
#define PZ_STATUS_TABLE(X)                       \
    X(OK, 0, "success")                          \
    X(E_NOMEM, -1, "out of memory")              \
    X(E_INVAL, -2, "invalid argument")           \
    X(E_IO, -3, "input/output error")            \
    X(E_FORMAT, -4, "malformed file")            \
    X(E_PARSE, -5, "graph text does not parse")  \
    X(E_TYPE, -6, "shape or data type mismatch") \
    X(E_VERIFY, -7, "graph is not well formed")  \
    X(E_PROOF, -8, "plan is not proven correct") \
    X(E_UNSUPPORTED, -9, "not supported")        \
    X(E_NOTFOUND, -10, "not found")              \
    X(E_RANGE, -11, "out of range")              \
    X(E_INTERNAL, -12, "internal error")         \
    X(E_TIMEOUT, -13, "timed out")               \
    X(E_PEER, -14, "another rank failed")

typedef enum pz_status {
#define PZ_STATUS_ENUM(name, value, text) PZ_##name = value,
    PZ_STATUS_TABLE(PZ_STATUS_ENUM)
#undef PZ_STATUS_ENUM
} pz_status;

typedef struct pz_error {
    pz_status code;
    char msg[512]; /* one line, NUL terminated, no trailing newline */
} pz_error;

/* Short text of a status ("out of memory"), and its name ("E_NOMEM"). Static strings; "unknown status" and
 * "E_UNKNOWN" for values outside the table. Any thread. */
PZ_API const char *pz_status_text(pz_status status);
PZ_API const char *pz_status_name(pz_status status);

/* "MAJOR.MINOR.PATCH". Static string. */
PZ_API const char *pz_version(void);

/* Called by functions that take long, from the thread that called them: `done` of `total` units of work are done. */
typedef void (*pz_progress_fn)(void *user, int done, int total);

/* Releases a string or array that the library returned to the caller. NULL is allowed. */
PZ_API void pz_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
