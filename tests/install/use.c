/* SPDX-License-Identifier: Apache-2.0 */
#include <prezero/graph.h>
#include <stdio.h>

int main(void) {
    pz_graph *graph = NULL;
    pz_error err;
    if (pz_graph_parse("nonsense", 8, "text", &graph, &err) != PZ_E_PARSE) return 1;
    printf("prezero %s\n", pz_version());
    return 0;
}
