/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: every tensor of an accepted file lies inside it, and its size is that of its shape and type. */
#include "fuzz.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pz_checkpoint *ck = NULL;
    pz_error err = {0};
    pz_status st = pz_safetensors_parse(data, size, "model.safetensors", &ck, &err);
    FUZZ_CHECK((st == PZ_OK) == (ck != NULL), "status %d", st);
    FUZZ_CHECK(st == PZ_OK || err.msg[0], "no message");
    for (int i = 0; ck && i < pz_checkpoint_count(ck); i++) {
        const pz_tensor *t = pz_checkpoint_at(ck, i);
        FUZZ_CHECK(pz_checkpoint_find(ck, t->name) == t, "%s", t->name);
        FUZZ_CHECK(t->rank >= 0 && t->rank <= 8, "rank %d", t->rank);
        uint64_t elements = 1;
        for (int d = 0; d < t->rank; d++) elements *= (uint64_t)t->shape[d];
        FUZZ_CHECK(elements <= t->bytes * 8, "%s: %llu elements in %zu bytes", t->name, (unsigned long long)elements,
                   t->bytes);
        FUZZ_CHECK(t->bytes == 0 ||
                       (t->data >= data && t->data <= data + size && t->bytes <= (size_t)(data + size - t->data)),
                   "%s lies outside the file", t->name);
    }
    pz_checkpoint_close(ck);
    return 0;
}
