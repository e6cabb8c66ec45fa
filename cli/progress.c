/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <unistd.h>

cli_progress cli_progress_begin(const char *what, const char *unit) {
    double now = cli_now();
    return (cli_progress){.what = what, .unit = unit, .start = now, .shown = now, .active = isatty(STDERR_FILENO) == 1};
}

void cli_progress_update(void *progress, int done, int total) {
    cli_progress *p = progress;
    double now = cli_now();
    if (!p->active || now - p->shown < 0.1) return;
    p->shown = now;
    fprintf(stderr, "\r%s: %d of %d %s", p->what, done, total, p->unit);
    if (done > 0 && now - p->start > 1) fprintf(stderr, ", %.0f s left", (now - p->start) / done * (total - done));
    fputs("\033[K", stderr);
    fflush(stderr);
}

void cli_progress_end(cli_progress *p) {
    if (p->active) fputs("\r\033[K", stderr);
    p->active = false;
}
