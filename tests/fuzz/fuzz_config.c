/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: what parses gives a well-formed graph or a reason why not. */
#include "fuzz.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static pz_hf_config c;
    pz_error err = {0};
    if (pz_hf_config_parse((const char *)data, size, "config.json", &c, &err) != PZ_OK) {
        FUZZ_CHECK(err.msg[0], "no message");
        return 0;
    }
    for (int inlined = 0; inlined < 2; inlined++) {
        pz_model_graph_options o = {.size = sizeof o, .tp = 1 + 3 * inlined, .inlined = inlined};
        pz_graph *g = NULL;
        pz_status st = pz_model_graph(&c, &o, &g, &err);
        FUZZ_CHECK((st == PZ_OK) == (g != NULL), "status %d", st);
        FUZZ_CHECK(st != PZ_E_INTERNAL && st != PZ_E_VERIFY && st != PZ_E_TYPE, "%s", err.msg);
        if (g) FUZZ_CHECK(pz_graph_verify(g, &err) == PZ_OK, "%s", err.msg);
        pz_graph_free(g);
    }
    return 0;
}
