/* SPDX-License-Identifier: Apache-2.0 */
/* One fault of each kind, and an OpenMP program with none: shows that a sanitizer build finds the former and accepts
 * the latter. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long shared_count;

static int barriers(int race) {
    int own[4] = {0}, total = 0;
#pragma omp parallel num_threads(4)
    for (int round = 0; round < 1000; round++) {
#pragma omp for schedule(static)
        for (int i = 0; i < 4; i++) own[i]++;
        if (race) shared_count++;
#pragma omp single
        for (int i = 0; i < 4; i++) total += own[i] == round + 1;
    }
    return total == 4000 ? 0 : 1;
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
