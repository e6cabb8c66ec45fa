/* SPDX-License-Identifier: Apache-2.0 */
/* Reading by memory map, writing beside the target and renaming. */
#ifndef PZ_FILE_H
#define PZ_FILE_H

#include <stdio.h>

#include "base/base.h"

typedef struct pz_map {
    const unsigned char *data; /* NULL when size is 0 */
    size_t size;
} pz_map;

/* Maps a regular file read-only. E_NOTFOUND, E_IO (directory, no permission, ...): path and reason. */
pz_status pz_map_open(const char *path, pz_map *out, pz_error *err);
void pz_map_close(pz_map *map);

/* A file being written: bytes go to a temporary name in the same directory until commit renames it. abort (or
 * commit's failure) removes it. */
typedef struct pz_outfile {
    FILE *f;
    char *tmp, *path;
} pz_outfile;
pz_status pz_outfile_open(pz_outfile *o, const char *path, pz_error *err);
pz_status pz_outfile_write(pz_outfile *o, const void *data, size_t n, pz_error *err);
pz_status pz_outfile_commit(pz_outfile *o, pz_error *err);
void pz_outfile_abort(pz_outfile *o);

pz_status pz_file_write(const char *path, const void *data, size_t n, pz_error *err);
/* Whole file plus a NUL (pz_free); pipes and devices too. E_RANGE above 128 MiB. */
pz_status pz_file_read(const char *path, char **data, size_t *size, pz_error *err);
bool pz_file_exists(const char *path);
/* dir/name on the heap (pz_free); NULL if out of memory. */
char *pz_path_join(const char *dir, const char *name);

#endif
