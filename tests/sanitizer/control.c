/* SPDX-License-Identifier: Apache-2.0 */
/* One fault of each kind, and threads that work together with none: shows that a sanitizer build finds the former and
 * accepts the latter. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/par.h"

typedef struct counts {
    int own[4];
    int shared, races;
} counts;

static void count(void *arg, int tid, int nthreads) {
    counts *c = arg;
    for (int round = 0; round < 1000; round++) {
        c->own[tid]++;
        if (c->races) c->shared++;
        pz_par_barrier();
        if (tid == round % nthreads) /* reads what the others wrote, and writes what the next one will */
            for (int i = 0; i < nthreads; i++) c->own[i] += c->own[(i + 1) % nthreads] == round + 1 ? 0 : 1000;
        pz_par_barrier();
    }
}

static int barriers(int races) {
    counts c = {.races = races};
    pz_par_run(4, count, &c);
    return c.own[0] == 1000 && c.own[3] == 1000 ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *fault = argc > 1 ? argv[1] : "clean";
    volatile int n = 40; /* keeps the compiler from seeing the faults */
    if (strcmp(fault, "leak") == 0) {
        char *volatile p = malloc((size_t)n);
        p = NULL;
        return p != NULL;
    }
    if (strcmp(fault, "overflow") == 0) {
        volatile char *p = malloc((size_t)n);
        if (p) p[n] = 1;
        free((void *)(uintptr_t)p);
    }
    if (strcmp(fault, "shift") == 0) printf("%d\n", 1 << n);
    return barriers(strcmp(fault, "race") == 0);
}
