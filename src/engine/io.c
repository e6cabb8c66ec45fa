/* SPDX-License-Identifier: Apache-2.0 */
/* File access for callers of the public API. */
#include "base/file.h"
#include "prezero/engine.h"

pz_status pz_write_text(const char *path, const char *text, pz_error *err) {
    PZ_NEED(path && text, "a path and a text", err);
    return pz_file_write(path, text, strlen(text), err);
}

pz_status pz_read_text(const char *path, char **text, size_t *size, pz_error *err) {
    PZ_NEED(path && text && size, "a path and places for the text and its size", err);
    return pz_file_read(path, text, size, err);
}
