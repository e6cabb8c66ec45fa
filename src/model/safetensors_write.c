/* SPDX-License-Identifier: Apache-2.0 */
/* Writing one f32 matrix as a safetensors file. */
#include "base/file.h"
#include "base/json.h"
#include "prezero/engine.h"

/* Header with its 8 length bytes, padded with spaces so that the data is aligned. */
static pz_status make_header(const char *name, int64_t rows, int64_t cols, size_t bytes, pz_str *out, pz_error *err) {
    json_t *root = json_pack("{s:{s:s, s:[I,I], s:[i,I]}}", name, "dtype", "F32", "shape", (json_int_t)rows,
                             (json_int_t)cols, "data_offsets", 0, (json_int_t)bytes);
    if (!root) {
        /* json_pack refuses what is not UTF-8; all else here can only fail for want of memory. */
        if (pz_utf8_valid(name, strlen(name), NULL)) return PZ_NOMEM(err);
        return pz_fail(err, PZ_E_INVAL, "the tensor's name is not valid UTF-8");
    }
    char *text;
    pz_status st = pz_json_dump(root, &text, err);
    json_decref(root);
    if (st != PZ_OK) return st;
    size_t used = strlen(text), length = pz_align_up(used, 8);
    char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (char)(length >> (8 * i) & 0xff);
    pz_str_addn(out, prefix, sizeof prefix);
    pz_str_addn(out, text, used);
    pz_str_addn(out, "       ", length - used);
    pz_free(text);
    return out->failed ? PZ_NOMEM(err) : PZ_OK;
}

pz_status pz_write_safetensors(const char *path, const char *name, const float *data, int64_t rows, int64_t cols,
                               pz_error *err) {
    size_t bytes;
    if (!path || !name || rows < 0 || cols < 0 || !pz_mul_ok((size_t)rows, (size_t)cols, &bytes) ||
        !pz_mul_ok(bytes, sizeof(float), &bytes) || bytes > INT64_MAX || (bytes && !data))
        return pz_fail(err, PZ_E_INVAL, "pz_write_safetensors: a path, a name and a matrix [rows, cols] are needed");
    pz_str header = {0};
    pz_outfile file;
    pz_status st = make_header(name, rows, cols, bytes, &header, err);
    if (st == PZ_OK) st = pz_outfile_open(&file, path, err);
    if (st == PZ_OK) {
        st = pz_outfile_write(&file, header.s, header.n, err);
        if (st == PZ_OK) st = pz_outfile_write(&file, data, bytes, err);
        if (st == PZ_OK)
            st = pz_outfile_commit(&file, err);
        else
            pz_outfile_abort(&file);
    }
    pz_str_free(&header);
    return st;
}
