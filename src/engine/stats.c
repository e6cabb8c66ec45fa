/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/stats.h"

#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void pz_stats_sort(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, compare_doubles);
}

double pz_stats_median(const double *sorted, int n) {
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

void pz_stats_median_ci(const double *sorted, int n, double *lo, double *hi) {
    /* below = P(Binomial(n, 1/2) < j); the terms are taken in logarithms, as 2^-n underflows for large n. */
    int j = 0, sign;
    double below = 0, log_all = lgamma_r(n + 1.0, &sign) - n * log(2.0);
    for (int k = 0; k < n / 2; k++) {
        below += exp(log_all - lgamma_r(k + 1.0, &sign) - lgamma_r(n - k + 1.0, &sign));
        if (2 * below > 0.05) break;
        j = k + 1;
    }
    if (j < 1) j = 1;
    *lo = sorted[j - 1];
    *hi = sorted[n - j];
}
