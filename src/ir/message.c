/* SPDX-License-Identifier: Apache-2.0 */
/* Where a message points. */
#include <stdio.h>

#include "ir/ir_internal.h"

static void node_title(const pz_node *n, char *buf, size_t cap) {
    if (n->op == PZ_OP_CALL)
        snprintf(buf, cap, "call @%.80s", n->callee ? n->callee->name : "?");
    else if (n->results.n)
        snprintf(buf, cap, "%s %%%.80s", pz_op_text(n->op), n->results.at[0]->name);
    else
        snprintf(buf, cap, "%s", pz_op_text(n->op));
}

const char *pz_node_describe(const pz_node *n, char *buf, size_t cap) {
    char title[128];
    node_title(n, title, sizeof title);
    if (n->line)
        snprintf(buf, cap, "%s (%s:%d:%d)", title, n->func->graph->name, n->line, n->col);
    else
        snprintf(buf, cap, "%s", title);
    return buf;
}

static pz_status fail_at(const pz_func *f, int line, int col, const char *title, pz_status code, pz_error *err,
                         const char *fmt, va_list ap) {
    char msg[400], where[96] = "";
    vsnprintf(msg, sizeof msg, fmt, ap);
    if (line) snprintf(where, sizeof where, "%.60s:%d:%d: ", f->graph->name, line, col);
    return pz_fail(err, code, "%s@%.80s: %s%s%s", where, f->name, title, *title ? ": " : "", msg);
}

pz_status pz_node_fail(const pz_node *n, pz_status code, pz_error *err, const char *fmt, ...) {
    char title[128];
    node_title(n, title, sizeof title);
    va_list ap;
    va_start(ap, fmt);
    code = fail_at(n->func, n->line, n->col, title, code, err, fmt, ap);
    va_end(ap);
    return code;
}

pz_status pz_func_fail(const pz_func *f, pz_status code, pz_error *err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    code = fail_at(f, f->line, f->col, "", code, err, fmt, ap);
    va_end(ap);
    return code;
}
